//! The command line of the benchmark.

/// Arguments of the benchmark. With the defaults it takes about a minute and a half.
pub(crate) struct Arguments {
    pub(crate) entities: Vec<u64>,
    pub(crate) payload_bytes: usize,
    pub(crate) runs: usize,
}

impl Arguments {
    /// `--entities`, `--payload` and `--runs`, each followed by a number; `--entities` may be repeated.
    pub(crate) fn read() -> Result<Self, Box<dyn std::error::Error>> {
        let mut read = Self { entities: Vec::new(), payload_bytes: 300, runs: 3 };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number = || words.next().ok_or_else(|| format!("{word} needs a number"));
            match word.as_str() {
                "--entities" => read.entities.push(number()?.parse()?),
                "--payload" => read.payload_bytes = number()?.parse()?,
                "--runs" => read.runs = number()?.parse()?,
                // `cargo bench` passes this argument.
                "--bench" => {}
                _ => return Err(format!("{word} is not known").into()),
            }
        }
        if read.entities.is_empty() {
            read.entities = vec![1, 10, 32, 100, 1_000, 10_000];
        }
        Ok(read)
    }
}
