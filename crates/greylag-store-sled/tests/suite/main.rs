//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

#[cfg(feature = "ddata")]
mod ddata;
#[cfg(feature = "ddata")]
mod ddata_crash;
#[cfg(feature = "ddata")]
mod ddata_tail;
