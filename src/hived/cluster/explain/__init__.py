"""Why a group waits and where it runs: found as data, said in sentences."""
