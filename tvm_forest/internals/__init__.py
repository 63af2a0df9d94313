"""What of TVM this package needs and TVM promises nobody: names, texts, memory.

takes: nothing; gives: names, functions, and the table of all of them.
"""
