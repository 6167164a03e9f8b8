"""What the code decided at a known moment, so that a change of structure can be told from a change of decisions.

* ``clusters/``: ten generated clusters of several kinds of nodes, each with a trace of its tenants; synthetic.
* ``sharing/``: a small cluster each whose jobs share GPUs, by Gandiva and by AntMan; synthetic.
* ``walks.jsonl.gz``: event logs of random walks of the core: requests, late commits, broken hardware, new specs.
* ``hashes.json``: SHA-256 of every file of results: the ten clusters, and the Philly trace on 279 and 200 nodes, which
  is not part of this repository.

    python -m tests.golden check           compare all that is at hand: minutes
    python -m tests.golden write FOLDER    leave the files, so that those of two commits can be compared line by line
    python -m tests.golden record          make today's results the expected ones
"""
