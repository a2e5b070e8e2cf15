//! The same bytes, appended to a plain file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::{Load, Shape};

/// Appends and syncs each group; answers events per second.
pub(crate) fn run(path: &Path, load: Load, shape: Shape) -> Result<f64, Box<dyn std::error::Error>> {
    let mut file = File::create(path.join("plain"))?;
    let group = vec![7; usize::try_from(shape.bytes / shape.groups)?];
    let began_at = Instant::now();
    for _ in 0..shape.groups {
        file.write_all(&group)?;
        file.sync_data()?;
    }
    Ok(load.rate(began_at))
}
