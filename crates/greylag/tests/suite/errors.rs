//! Output of a `main` that returns an error of settings, of a start, or of a part started on a node: the sentence of
//! `Display`, with every wrong key, and each cause once.

use std::error::Error;

use greylag::cluster::{ConfigError, JoinError, SingletonError, StartError as ClusterStartError};
use greylag::transport::{TlsSettings, TransportSettings};
use greylag::{Config, StartError, cluster, core, ddata, delivery, discovery_dns, management, persistence, transport};
use greylag::{journal_postgres, journal_service, journal_sled, lease_postgres, sharding};

/// The output of a `main` that returns `error`, which must be its sentence with its causes.
fn printed(error: impl Into<Box<dyn Error>>) -> String {
    let error = error.into();
    let text = format!("{error:?}");
    assert!(text.starts_with(&error.to_string()), "it begins with the sentence {error}: {text}");
    let mut source = error.source();
    while let Some(cause) = source {
        assert!(text.contains(&cause.to_string()), "it tells the cause {cause}: {text}");
        source = cause.source();
    }
    assert!(!text.contains(" { ") && !text.contains("Some("), "it is no row of braces: {text}");
    text
}

#[test]
fn the_error_of_a_start_is_a_sentence_with_every_wrong_key_and_each_cause_once() {
    let file = "[cluster]\ngossip_intervall = \"1s\"\n[sharding]\nnumber_of_shards = \"many\"\n";
    let problems = Config::new().text("node.toml", file).read().expect_err("two keys are wrong");
    assert_eq!(printed(problems.clone()), problems.to_string());
    let text = printed(StartError::from(problems.clone()));
    assert_eq!(text, format!("invalid configuration:\n{problems}"));
    assert!(text.contains("node.toml:2: cluster.gossip_intervall"), "{text}");
    assert!(text.contains("node.toml:4: sharding.number_of_shards"), "{text}");

    let io = std::io::Error::other("no more threads");
    let text = printed(StartError::from(ClusterStartError::Runtime(io)));
    assert!(text.starts_with("membership did not start: the runtime"), "{text}");
    assert!(text.ends_with(": no more threads"), "the cause of the cause: {text}");
    let wrong = |setting: &'static str| ConfigError { setting: setting.into(), value: "0".into(), why: "must not" };
    let text = printed(StartError::from(ClusterStartError::Config(vec![wrong("roles"), wrong("event_buffer")])));
    assert!(text.contains("cluster.roles = 0") && text.contains("cluster.event_buffer = 0"), "{text}");
    assert_eq!(text.matches("event_buffer").count(), 1, "said once: {text}");
}

#[test]
fn errors_of_transport_and_cluster_are_sentences() {
    let settings = TransportSettings { max_batch_messages: 0, ..TransportSettings::default() };
    let errors = settings.validate().expect_err("no name, and no message");
    let text = printed(transport::BindError::from(errors.clone()));
    for key in ["transport.cluster_name", "transport.max_batch_messages"] {
        assert!(text.contains(key) && printed(errors.clone()).contains(key), "{text}");
    }
    printed(errors.0[0].clone());
    let files = TlsSettings::new("/nowhere/key", "/nowhere/cert", "/nowhere/ca");
    assert!(printed(transport::TlsFiles::open(files, "localhost").expect_err("no files")).contains("/nowhere/"));
    printed("a b:1".parse::<core::NodeAddress>().expect_err("a space"));
    printed(core::parse_duration("soon").expect_err("no duration"));

    let name = "biller".to_owned();
    printed(SingletonError::OtherMessages { name: name.clone() });
    let problems = vec![ConfigError { setting: "singleton.x".into(), value: "0".into(), why: "it must not be 0" }];
    assert!(printed(problems[0].clone()).contains("cluster.singleton.x = 0"));
    assert!(printed(SingletonError::Config { name, problems }).contains("cluster.singleton.x = 0"));
    printed(JoinError::NoSeeds);
    printed(StartError::from(JoinError::NoSeeds));
    printed(cluster::Terminated(cluster::ShutdownReason::Left));
    printed(cluster::DiscoveryError { by: "dns".to_owned(), why: "no answer".to_owned() });
}

#[test]
fn errors_of_the_layers_above_are_sentences() {
    printed(ddata::Key::<greylag::crdt::GCounter>::new("").expect_err("no id"));
    printed(ddata::StartError::Settings("ddata.gossip_interval = 0s".to_owned()));
    printed(sharding::error::InvalidTypeName { name: "a/b".to_owned(), why: "it has a slash" });
    printed(sharding::InitError::NoReplicator { reason: ddata::StartError::Settings("none".to_owned()) });
    printed(sharding::NotStarted { name: "Cart".to_owned(), known: vec!["Order".to_owned()] });
    printed(delivery::ProducerId::new("").expect_err("no id"));
    let error = delivery::SettingsError { field: "producer.window", why: "it must not be 0" };
    printed(delivery::StartError::from(error.clone()));
    printed(error);
    printed(persistence::PersistenceId::unique("").expect_err("no id"));
    printed(persistence::SettingsError::ZeroDuration { key: "recovery_event_timeout" });
}

#[test]
fn errors_of_stores_and_services_are_sentences() {
    let nowhere = std::path::PathBuf::from("/nowhere");
    printed(journal_sled::OpenError::Locked { path: nowhere });
    printed(journal_postgres::OpenError::InUse {
        schema: "shop".to_owned(),
        place: "db:5432".to_owned(),
        by: "a node".to_owned(),
    });
    printed(journal_service::SettingsError::Zero { key: "service.max_calls" });
    printed(journal_service::BindError::PlainText { address: ([10, 0, 0, 1], 1).into() });
    printed(journal_service::ConnectError::Unreachable { address: "a:1".to_owned(), cause: "refused".to_owned() });
    printed(management::StartError::PlainText { address: ([10, 0, 0, 1], 1).into() });
    printed(management::connect("nowhere").expect_err("no port"));
    printed(discovery_dns::InvalidName::System("no resolv.conf".into()));
    printed(lease_postgres::PostgresLeaseError::InvalidTls { why: "sslmode is what?".to_owned() });
}
