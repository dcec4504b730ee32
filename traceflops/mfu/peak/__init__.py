"""What devices can do, and which row of the table a device is."""
