"""Jobs as people look at them: on the devices they share, and on the points of a grid."""
