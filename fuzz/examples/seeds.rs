//! Writes inputs that are read into `corpus/`, so that fuzzing does not begin with nothing.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let of_transport = [
        ("transport_frame", greylag_transport::fuzzing::frames()),
        ("transport_hello", greylag_transport::fuzzing::hellos()),
        ("transport_batches", greylag_transport::fuzzing::pairs_of_batches()),
    ];
    let of_delivery = greylag_delivery::fuzzing::seeds().into_iter().chain(greylag_persistence::fuzzing::seeds());
    for (target, inputs) in of_transport.into_iter().chain(of_delivery) {
        let directory = corpus.join(target);
        std::fs::create_dir_all(&directory)?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
