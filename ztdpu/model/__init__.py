"""The nouns of ztdpu and their closed enums: values only, a file per noun, no behaviour beyond themselves.

Every layer above may use them; they use nothing but `ztdpu.errors`.
"""
