//! Nouns shared by every layer: addresses, incarnations, generations, codecs, reply tokens, dead-letter reasons.
