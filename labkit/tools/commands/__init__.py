"""The commands of `labkit`. A command imports what it needs when it is called."""
