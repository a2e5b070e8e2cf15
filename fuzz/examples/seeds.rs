//! Writes inputs that are read into `corpus/`, so that fuzzing does not begin with nothing.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, inputs) in [
        ("transport_frame", greylag_transport::fuzzing::frames()),
        ("transport_hello", greylag_transport::fuzzing::hellos()),
        ("transport_batches", greylag_transport::fuzzing::pairs_of_batches()),
    ] {
        let directory = corpus.join(target);
        std::fs::create_dir_all(&directory)?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
