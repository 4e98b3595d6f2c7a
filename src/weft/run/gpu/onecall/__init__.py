"""A recipe as one call of C: every kernel and product of a pass launched without Python in between.

    numbers, blocks    stand-ins for the sizes and tensors of a call
    record             runs the recipe's Python on stand-ins: what it would launch becomes a list
    operations         what that list is made of
    later              what torch makes of its results
    copies             which of them need not be made
    thrifty, placing   its order, and where its memory lies
    joining            launches that become one
    text               the list as C
    lowered            the Python around it: memory for results, one call

What cannot be written down so raises `NotLowered`, and the recipe stays Python.
"""
