//! How an error is printed where a program returns it from `main`.
//!
//! `main` prints the `Debug` of the error it returns, and so does `unwrap`. For the errors that a newcomer meets
//! first that is the sentence of `Display`, and what led to it.

use std::error::Error;
use std::fmt;

/// Writes the sentence, and each cause that it does not name already.
pub(crate) fn fmt_debug(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    f.write_str(&text)
}

#[cfg(test)]
mod tests {
    use greylag_cluster::{ConfigError, StartError as ClusterStartError};

    use crate::{Config, StartError};

    fn debug(error: impl Into<StartError>) -> String {
        format!("{:?}", error.into())
    }

    #[test]
    fn what_main_prints_is_the_sentence_with_every_wrong_key_and_each_cause_once() {
        let file = "[cluster]\ngossip_intervall = \"1s\"\n[sharding]\nnumber_of_shards = \"many\"\n";
        let problems = Config::new().text("node.toml", file).read().expect_err("two keys are wrong");
        assert_eq!(format!("{problems:?}"), problems.to_string());
        let text = debug(problems.clone());
        assert_eq!(text, format!("invalid configuration:\n{problems}"));
        assert!(text.contains("node.toml:2: cluster.gossip_intervall"), "{text}");
        assert!(text.contains("node.toml:4: sharding.number_of_shards"), "{text}");

        let io = std::io::Error::other("no more threads");
        let text = debug(ClusterStartError::Runtime(io));
        assert!(text.starts_with("membership did not start: the runtime"), "{text}");
        assert!(text.ends_with(": no more threads"), "the cause of the cause: {text}");
        let wrong = |setting: &'static str| ConfigError { setting: setting.into(), value: "0".into(), why: "must not" };
        let text = debug(ClusterStartError::Config(vec![wrong("roles"), wrong("event_buffer")]));
        assert!(text.contains("cluster.roles = 0") && text.contains("cluster.event_buffer = 0"), "{text}");
        assert_eq!(text.matches("event_buffer").count(), 1, "said once: {text}");
    }
}
