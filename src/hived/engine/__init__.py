"""What a job is, whatever runs it: its states, its events, and what each event does to it. Pure."""
