//! Memory of the process and size of its files.

use std::fs;
use std::path::Path;

use crate::Failure;

const MIB: f64 = 1_048_576.0;

/// Resident bytes now, in MiB.
pub(crate) fn resident() -> Result<f64, Failure> {
    status("VmRSS:")
}

/// The largest resident set since [`forget_peak`], in MiB.
pub(crate) fn peak() -> Result<f64, Failure> {
    status("VmHWM:")
}

/// Resets the peak that [`peak`] reports.
pub(crate) fn forget_peak() -> Result<(), Failure> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

fn status(name: &str) -> Result<f64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / MIB)
}

/// Bytes of all files below `directory`, without the ballast, which is empty space.
pub(crate) fn size_of(directory: &Path) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            bytes += size_of(&entry.path())?;
        } else if entry.file_name() != "greylag.ballast" {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}
