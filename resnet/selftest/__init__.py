"""The known-answer test of a core: what each core computes, compared with all others.

`cases` computes with every compiled op, `cores` runs that on each core by itself,
`verdict` compares the results, and `job` does all this at the start of a job.
"""
