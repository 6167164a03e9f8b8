"""What pods say, in labels, annotations, GPU requests and owners; and what is written on those that are bound."""
