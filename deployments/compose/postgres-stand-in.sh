#!/bin/sh
# Entry point of the stand-in for the official PostgreSQL image: what compose.yaml needs of the real one.
set -eu
PGDATA=/var/lib/postgresql/data
PATH="$(echo /usr/lib/postgresql/*/bin):$PATH"
export PGDATA PATH
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
mkdir -p "$PGDATA" /var/run/postgresql
chown postgres "$PGDATA" /var/run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" > /run/password
    chown postgres /run/password
    as_postgres initdb --encoding UTF8 --locale C.UTF-8 --username "$POSTGRES_USER" --pwfile /run/password --auth-local trust --auth-host scram-sha-256
    rm /run/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    as_postgres pg_ctl start -w -o "-c listen_addresses=''"
    for script in /docker-entrypoint-initdb.d/*.sh; do as_postgres sh "$script"; done
    as_postgres pg_ctl stop -w -m fast
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -c "listen_addresses=*"
