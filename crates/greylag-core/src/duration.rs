//! Durations as people write them: `5s`, `100ms`, `2m`, `1.5h`, `1m30s`.
//!
//! The config file, the environment and the command line read the same words.

use std::time::Duration;

/// The units, the longest first, so that writing prefers them.
const UNITS: &[(&str, u128)] = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration; write a number with a unit, such as 5s, 100ms, 2m or 1m30s")]
pub struct InvalidDuration {
    /// The text as it was given.
    pub text: String,
}

crate::debug_is_sentence!(InvalidDuration);

/// Reads one or more numbers, each with its unit: ns, us, ms, s, m, h or d. A number without a unit
/// is refused, since its meaning cannot be known.
///
/// # Errors
/// [`InvalidDuration`].
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.to_owned() };
    let mut rest = text.trim();
    let mut total: u128 = 0;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(unit_at);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(end);
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        total = total.checked_add(nanoseconds(number.trim(), *nanos).ok_or_else(invalid)?).ok_or_else(invalid)?;
        rest = after.trim_start();
    }
    let seconds = u64::try_from(total / 1_000_000_000).map_err(|_| invalid())?;
    Ok(Duration::new(seconds, (total % 1_000_000_000) as u32))
}

/// `1.5` of a unit, exactly; digits below a nanosecond are refused.
fn nanoseconds(number: &str, unit: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if whole.is_empty()
        || !digits(whole)
        || !digits(part)
        || part.len() > 18
        || (number.contains('.') && part.is_empty())
    {
        return None;
    }
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let fraction = if part.is_empty() { 0 } else { part.parse::<u128>().ok()?.checked_mul(unit)? };
    if fraction % scale != 0 {
        return None;
    }
    whole.parse::<u128>().ok()?.checked_mul(unit)?.checked_add(fraction / scale)
}

/// Writes a duration in the largest unit that leaves a whole number.
pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = UNITS.iter().find(|(_, size)| nanos.is_multiple_of(*size)).expect("1 ns divides everything");
    format!("{}{unit}", nanos / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        for (text, millis) in [
            ("5s", 5_000),
            ("100ms", 100),
            ("2m", 120_000),
            ("1.5h", 5_400_000),
            ("1m30s", 90_000),
            (" 1 m 30 s ", 90_000),
            ("24h", 86_400_000),
            ("0s", 0),
            ("0.25s", 250),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("7us").unwrap(), Duration::from_micros(7));
    }

    #[test]
    fn missing_or_unknown_units_are_refused() {
        for text in
            ["", "5", "5 seconds", "s", "-5s", "1..5s", "1.s", "5s5", "0.0000000001s", "99999999999999999999999999d"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown_durations_read_back() {
        for nanos in [0, 1, 1_500, 100_000_000, 5_000_000_000, 90_000_000_000, 86_400_000_000_000, 604_800_000_000_001]
        {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
        assert_eq!(show_duration(Duration::from_secs(90)), "90s");
        assert_eq!(show_duration(Duration::from_secs(86_400)), "1d");
    }
}
