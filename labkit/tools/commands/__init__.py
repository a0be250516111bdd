"""The commands of `labkit`, one file each. What a command needs is imported when it is called."""
