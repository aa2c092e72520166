"""Jobs in the report: on the devices they share, and on the points of a grid."""
