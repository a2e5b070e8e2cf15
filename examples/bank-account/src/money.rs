//! Amounts of money, and the reasons for refusals.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The currencies of the bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Currency {
    Eur,
    Usd,
}

/// An amount in hundredths of a currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Money {
    pub(crate) cents: u64,
    pub(crate) currency: Currency,
}

/// The reason why an account refuses a command; nothing is stored then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the account would be overdrawn")]
    Overdrawn,
    #[error("the account is kept in another currency")]
    OtherCurrency,
    #[error("the account cannot hold so much")]
    TooMuch,
}

impl Money {
    /// An amount in cents of a euro.
    pub(crate) const fn euro_cents(cents: u64) -> Self {
        Self { cents, currency: Currency::Eur }
    }

    /// An amount in cents of a dollar.
    pub(crate) const fn dollar_cents(cents: u64) -> Self {
        Self { cents, currency: Currency::Usd }
    }

    pub(crate) fn plus(self, other: Self) -> Result<Self, Refusal> {
        self.with(self.cents.checked_add(other.cents).ok_or(Refusal::TooMuch), other)
    }

    pub(crate) fn minus(self, other: Self) -> Result<Self, Refusal> {
        self.with(self.cents.checked_sub(other.cents).ok_or(Refusal::Overdrawn), other)
    }

    fn with(self, cents: Result<u64, Refusal>, other: Self) -> Result<Self, Refusal> {
        if self.currency == other.currency { Ok(Self { cents: cents?, ..self }) } else { Err(Refusal::OtherCurrency) }
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let currency = match self.currency {
            Currency::Eur => "EUR",
            Currency::Usd => "USD",
        };
        write!(f, "{}.{:02} {currency}", self.cents / 100, self.cents % 100)
    }
}
