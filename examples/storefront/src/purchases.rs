//! The purchases file: the format of its lines, and the errors of lines that violate it.
//!
//! The whole file is read and checked before anything is sent. Money is parsed and computed in whole cents;
//! no floating point number is involved.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

/// The columns, in their order.
const COLUMNS: [&str; 4] = ["customer_id", "date", "quantity", "amount_usd"];

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PurchaseLine {
    /// The customer who bought.
    pub(crate) customer: u32,
    /// The date, as `YYYY-MM-DD`.
    pub(crate) date: String,
    /// Count of pieces; at least 1.
    pub(crate) units: u32,
    /// The price paid, in cents.
    pub(crate) cents: u64,
}

/// The sums over the purchases of one customer, or of all customers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Totals {
    /// Count of purchases.
    pub(crate) purchases: u64,
    /// Count of pieces.
    pub(crate) units: u64,
    /// Sum of the prices paid, in cents.
    pub(crate) cents: u64,
}

impl Totals {
    /// Adds one purchase.
    pub(crate) fn add(&mut self, units: u32, cents: u64) {
        self.purchases += 1;
        self.units += u64::from(units);
        self.cents += cents;
    }

    /// Adds the totals of another customer.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.purchases += other.purchases;
        self.units += other.units;
        self.cents += other.cents;
    }
}

/// The content of a checked file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Purchases {
    /// The good lines, in the order of the file.
    pub(crate) lines: Vec<PurchaseLine>,
    /// Count of bad lines that were left out.
    pub(crate) skipped: u64,
}

impl Purchases {
    /// Reads and checks the whole file.
    ///
    /// # Errors
    /// [`BadFile`] names file, line, column and the expected content. With `skip_bad_lines`, bad lines
    /// are counted and left out; an unreadable file or one with other columns is still an error.
    pub(crate) fn read(path: &Path, skip_bad_lines: bool) -> Result<Self, BadFile> {
        let bad = |line, why| BadFile { file: path.to_path_buf(), line, why };
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_path(path)
            .map_err(|error| bad(None, Why::Unreadable(error.to_string())))?;
        let mut purchases = Self::default();
        let mut record = csv::ByteRecord::new();
        let mut header = false;
        loop {
            let line = reader.position().line();
            match reader.read_byte_record(&mut record) {
                Ok(false) if !header => return Err(bad(None, Why::Empty)),
                Ok(false) => return Ok(purchases),
                Ok(true) if !header => {
                    header = check_header(&record).map_err(|why| bad(Some(line), why))?;
                }
                Ok(true) => match parse(&record) {
                    Ok(purchase) => purchases.lines.push(purchase),
                    Err(_) if skip_bad_lines => purchases.skipped += 1,
                    // The record itself has the line number: the reader skips blank lines without counting them here.
                    Err(why) => return Err(bad(record.position().map(csv::Position::line).or(Some(line)), why)),
                },
                Err(error) => return Err(bad(Some(line), Why::Unreadable(error.to_string()))),
            }
        }
    }

    /// The totals by customer, computed directly from the file.
    pub(crate) fn totals(&self) -> BTreeMap<u32, Totals> {
        let mut totals = BTreeMap::<u32, Totals>::new();
        for line in &self.lines {
            totals.entry(line.customer).or_default().add(line.units, line.cents);
        }
        totals
    }

    /// A hash that identifies this sequence of purchases.
    ///
    /// The hash is the delivery stream's id, and a line's position in the file is its number in the stream:
    /// sending the same file again, after a crash or on another day, sends the same messages.
    pub(crate) fn stream_id(&self) -> u128 {
        let mut text = String::new();
        for PurchaseLine { customer, date, units, cents } in &self.lines {
            fmt::Write::write_fmt(&mut text, format_args!("{customer},{date},{units},{cents}\n"))
                .expect("writing to a string cannot fail");
        }
        XxHash3_128::oneshot(text.as_bytes())
    }
}

fn check_header(record: &csv::ByteRecord) -> Result<bool, Why> {
    let found: Vec<_> = record.iter().map(|field| String::from_utf8_lossy(field).into_owned()).collect();
    // Remove a byte order mark, with which spreadsheets begin files.
    let is_header = found.iter().map(|name| name.trim_start_matches('\u{feff}').trim()).eq(COLUMNS);
    if is_header { Ok(true) } else { Err(Why::Header(found.join(","))) }
}

fn parse(record: &csv::ByteRecord) -> Result<PurchaseLine, Why> {
    if record.len() != COLUMNS.len() {
        return Err(Why::FieldCount(record.len()));
    }
    let text = |column: usize| {
        std::str::from_utf8(&record[column])
            .map(str::trim)
            .map_err(|_| field(column, &String::from_utf8_lossy(&record[column]), "text in UTF-8"))
    };
    let (customer, date, units, amount) = (text(0)?, text(1)?, text(2)?, text(3)?);
    Ok(PurchaseLine {
        customer: customer.parse().map_err(|_| field(0, customer, "a whole number from 0 to 4294967295"))?,
        date: is_date(date).then(|| date.to_owned()).ok_or_else(|| field(1, date, "a date as YYYY-MM-DD"))?,
        units: units
            .parse()
            .ok()
            .filter(|units| *units > 0)
            .ok_or_else(|| field(2, units, "a whole number from 1 to 4294967295"))?,
        cents: cents(amount).ok_or_else(|| field(3, amount, "dollars and cents such as 11.77"))?,
    })
}

fn field(column: usize, found: &str, expected: &'static str) -> Why {
    Why::Field { column: column + 1, name: COLUMNS[column], found: found.to_owned(), expected }
}

fn is_date(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut number = |width: usize| {
        parts
            .next()
            .filter(|part| part.len() == width && part.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|part| part.parse::<u32>().ok())
    };
    let (Some(year), Some(month), Some(day), None) = (number(4), number(2), number(2), parts.next()) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// Parses `11.77` as 1177; needs exactly two decimals and takes no sign.
fn cents(text: &str) -> Option<u64> {
    let (dollars, cents) = text.split_once('.')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(dollars) || !digits(cents) || cents.len() != 2 {
        return None;
    }
    dollars.parse::<u64>().ok()?.checked_mul(100)?.checked_add(cents.parse().ok()?)
}

/// Why the file was refused. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadFile {
    file: PathBuf,
    line: Option<u64>,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    Unreadable(String),
    Empty,
    Header(String),
    FieldCount(usize),
    Field { column: usize, name: &'static str, found: String, expected: &'static str },
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        match &self.why {
            Why::Unreadable(error) => write!(f, ": cannot be read: {error}"),
            Why::Empty => write!(f, ": the file is empty; its first line must be {:?}", COLUMNS.join(",")),
            Why::Header(found) => write!(f, ": the first line must be {:?}, found {found:?}", COLUMNS.join(",")),
            Why::FieldCount(found) => {
                write!(f, ": expected {} fields ({}), found {found}", COLUMNS.len(), COLUMNS.join(","))
            }
            Why::Field { column, name, found, expected } => {
                write!(f, ", column {column} ({name}): expected {expected}, found {found:?}")
            }
        }?;
        write!(f, "; nothing was sent")?;
        if matches!(self.why, Why::FieldCount(_) | Why::Field { .. }) {
            write!(f, " (--skip-bad-lines leaves such lines out and counts them)")?;
        }
        Ok(())
    }
}

impl std::error::Error for BadFile {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, skip: bool) -> Result<Purchases, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.csv");
        std::fs::write(&path, text).unwrap();
        Purchases::read(&path, skip)
            .map_err(|error| error.to_string().replace(&directory.path().display().to_string(), ""))
    }

    const HEAD: &str = "customer_id,date,quantity,amount_usd\n";

    #[test]
    fn the_shipped_file_has_the_sums_that_are_printed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cdnow_purchases.csv");
        let purchases = Purchases::read(&path, false).unwrap();
        let mut all = Totals::default();
        purchases.totals().values().for_each(|totals| all.absorb(*totals));
        assert_eq!(purchases.totals().len(), 23_570);
        assert_eq!(all, Totals { purchases: 69_659, units: 167_881, cents: 250_031_563 });
    }

    #[test]
    fn invalid_lines_are_named_and_can_be_skipped() {
        for (line, expected) in [
            ("x,1997-01-01,1,1.00", "line 3, column 1 (customer_id): expected a whole number"),
            ("1,1997-02-29,1,1.00", "line 3, column 2 (date): expected a date as YYYY-MM-DD, found \"1997-02-29\""),
            ("1,1997-01-01,0,1.00", "line 3, column 3 (quantity): expected a whole number from 1"),
            (
                "1,1997-01-01,1,1.5",
                "line 3, column 4 (amount_usd): expected dollars and cents such as 11.77, found \"1.5\"",
            ),
            ("1,1997-01-01,1,-1.50", "column 4"),
            ("1,1997-01-01,1,99999999999999999999.00", "column 4"),
            ("1,1997-01-01,1", "line 3: expected 4 fields (customer_id,date,quantity,amount_usd), found 3"),
        ] {
            let text = format!("{HEAD}7,1997-01-01,2,3.50\n{line}\n8,1997-01-02,1,0.00\n");
            let error = read(&text, false).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("p.csv") && error.contains("nothing was sent"), "{error}");
            let purchases = read(&text, true).unwrap();
            assert_eq!((purchases.lines.len(), purchases.skipped), (2, 1), "{line}");
        }
    }

    #[test]
    fn lines_that_are_not_text_and_missing_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.csv");
        std::fs::write(&path, [HEAD.as_bytes(), b"1,1997-01-01,\xff,1.00\n"].concat()).unwrap();
        assert!(Purchases::read(&path, false).unwrap_err().to_string().contains("column 3"));
        assert!(Purchases::read(&directory.path().join("none"), false).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn other_columns_are_refused_even_when_bad_lines_are_skipped() {
        let expected = "line 1: the first line must be \"customer_id,date,quantity,amount_usd\"";
        assert!(read("a,b\n1,2\n", true).unwrap_err().contains(expected));
        assert!(
            read("", true).unwrap_err().contains("p.csv: the file is empty; its first line must be \"customer_id,")
        );
        assert!(read(&format!("\u{feff}{HEAD}"), false).is_ok());
    }

    #[test]
    fn the_stream_id_is_a_hash_of_the_content() {
        let one = read(&format!("{HEAD}1,1997-01-01,1,1.00\n"), false).unwrap();
        let same = read(&format!("{HEAD}bad\n1, 1997-01-01,1,1.00\n"), true).unwrap();
        let other = read(&format!("{HEAD}1,1997-01-01,1,1.01\n"), false).unwrap();
        assert_eq!(one.stream_id(), same.stream_id());
        assert_ne!(one.stream_id(), other.stream_id());
    }
}
