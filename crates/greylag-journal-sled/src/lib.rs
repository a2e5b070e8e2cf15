//! The embedded journal: the contract of greylag-persistence on sled.
