"""Policy from signed commits: which commits count. Objects of git in, decisions out; no git, no disk, no clock.

    objects          commits and trees as git stores them, each under the hash that it must have
    allowed_signers  whose keys count, from when to when; keys that count no more
    owners           who may change which path, and which tenants' documents may stand there
    trust            the three files of one commit, taken together
    history          every commit from the last accepted one to the tip
    snapshot         the policy files of one commit

Called by `control.source` and `ztdpu policy verify`.
"""
