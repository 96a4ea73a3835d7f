"""The commands of `legrad`, one file each."""
