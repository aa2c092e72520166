#!/bin/sh
# Run once by the postgres image, when its volume is empty: a database each for Prefect, MLflow and the journal.
set -eu
for name in prefect mlflow hpo; do
    psql --username "$POSTGRES_USER" --dbname postgres --set ON_ERROR_STOP=1 --command "CREATE DATABASE $name"
done
