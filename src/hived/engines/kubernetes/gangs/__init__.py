"""What is decided about gangs of pods. Pure: facts in, decisions and actions out."""
