//! URLs of stores.

use std::path::PathBuf;

use crate::failure::{Failure, Feature};

/// A parsed URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Url {
    Sled(PathBuf),
    Postgres { config: String, schema: String },
}

impl Url {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        let usage = |why: &str| {
            Failure::Usage(format!(
                "{:?} is not the URL of a store: {why}; write sled:/path/to/directory, or postgres://user@host/database?schema=name",
                shown(url)
            ))
        };
        if let Some(path) = url.strip_prefix("sled:") {
            let path = if path.starts_with("///") { &path[2..] } else { path };
            return match path {
                "" => Err(usage("the directory is missing")),
                path if path.starts_with("//") => Err(usage("a directory of this machine has no host")),
                path => Ok(Self::Sled(path.into())),
            };
        }
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(usage("it begins with neither sled: nor postgres://"));
        }
        // The parameter `schema` is ours; all others are the driver's.
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut rest) = ("public", Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) if name.contains('%') => {
                    return Err(usage("a schema is written as it is, without %"));
                }
                Some(("schema", name)) => schema = name,
                _ => rest.push(pair),
            }
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        Ok(Self::Postgres { config: format!("{base}{query}"), schema: schema.to_owned() })
    }

    /// The feature that this program needs to open a store of this kind.
    pub(super) fn feature(&self) -> Feature {
        match self {
            Self::Sled(_) => Feature::JournalSled,
            Self::Postgres { .. } => Feature::JournalPostgres,
        }
    }

    /// The URL, if this program can open its kind of store; checked first, so that no command stops half-way.
    #[cfg(feature = "stores")]
    pub(super) fn if_built(self) -> Result<Self, Failure> {
        let feature = self.feature();
        if feature.is_built() { Ok(self) } else { Err(feature.missing()) }
    }
}

/// The URL without user name and password.
pub(super) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postgres(config: &str, schema: &str) -> Url {
        Url::Postgres { config: config.to_owned(), schema: schema.to_owned() }
    }

    #[test]
    fn urls_name_stores() {
        for (url, meant) in [
            ("sled:/var/journal", Url::Sled("/var/journal".into())),
            ("sled:///var/journal", Url::Sled("/var/journal".into())),
            ("sled:journal", Url::Sled("journal".into())),
            ("postgres://db/shop", postgres("postgres://db/shop", "public")),
            ("postgresql://u@db/shop?schema=a", postgres("postgresql://u@db/shop", "a")),
            (
                "postgres://db/shop?sslmode=require&schema=a&connect_timeout=3",
                postgres("postgres://db/shop?sslmode=require&connect_timeout=3", "a"),
            ),
        ] {
            assert_eq!(Url::parse(url).unwrap(), meant, "{url}");
        }
        for url in ["", "sled:", "sled://host/x", "/var/journal", "mysql://db/shop", "postgres://db?schema=a%20b"] {
            assert!(matches!(Url::parse(url), Err(Failure::Usage(_))), "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(shown("postgres://app:secret@db:5432/shop?password=secret"), "postgres://db:5432/shop");
        let Err(Failure::Usage(told)) = Url::parse("mysql://app:secret@db/shop") else {
            panic!("the URL was accepted")
        };
        assert!(!told.contains("secret"), "{told}");
    }
}
