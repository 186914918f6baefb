"""Calls made from contracts: valid ones, and ones with a single fault together with the message that it must give.

    call      a call as data: tensors without memory, and plain values
    values    what the expressions of contracts mean, as Python computes it
    verdict   what a call must come to: nothing, or a status and a message
    draw      random calls, from any source of choices
    faults    a valid call with one thing changed
    strategies, c_cases    the same for Hypothesis and as a program in C

Nothing here is shared with the hosts that write the checks: where both agree, they agree about the contract.
"""
