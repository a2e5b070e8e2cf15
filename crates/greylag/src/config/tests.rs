use std::time::Duration;

use greylag_cluster::{Downing, RemovalMargin, Strategy};

use super::*;

fn read(text: &str) -> Result<ReadSettings, ConfigProblems> {
    Config::new().text("node.toml", text).read()
}

fn problems(text: &str) -> Vec<String> {
    let problems = match read(text) {
        Err(problems) => problems,
        Ok(read) => read.validate().expect_err("something is wrong"),
    };
    problems.0.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_becomes_settings() {
    let text = r#"
        [transport]
        cluster_name = "bank"
        connection_timeout = "100ms"
        maximum_frame_size = "512KiB"

        [cluster]
        seed_nodes = ["a.example:1", "b.example:2"]
        roles = ["accounts"]
        weakly_up_after = "off"
        down_removal_margin = "7s"
        role.accounts.min_number_of_members = 3
        failure_detector.threshold = 10
        coordinated_shutdown.service_stop.timeout = "1m"

        [cluster.sbr]
        active_strategy = "static_quorum"
        stable_after = "13s"
        static_quorum = { quorum_size = 3, role = "accounts" }
    "#;
    let settings = read(text).expect("it reads").settings;
    assert_eq!(settings.transport.cluster_name, "bank");
    assert_eq!(settings.transport.connection_timeout, Duration::from_millis(100));
    assert_eq!(settings.transport.maximum_frame_size, 512 * 1024);
    assert_eq!(settings.cluster.seed_nodes, ["a.example:1".parse().unwrap(), "b.example:2".parse().unwrap()]);
    assert_eq!(settings.cluster.weakly_up_after, None);
    assert_eq!(settings.cluster.down_removal_margin, RemovalMargin::Fixed(Duration::from_secs(7)));
    assert_eq!(settings.cluster.role_min_number_of_members["accounts"], 3);
    assert_eq!(settings.cluster.failure_detector.threshold, 10.0);
    let stop = settings.cluster.coordinated_shutdown.phase_timeouts[&greylag_cluster::Phase::ServiceStop];
    assert_eq!(stop, Duration::from_secs(60));
    let Downing::SplitBrainResolver(sbr) = &settings.cluster.downing else { panic!("{settings:?}") };
    assert_eq!(sbr.strategy, Strategy::StaticQuorum { role: Some("accounts".to_owned()), quorum_size: 3 });
    assert_eq!(sbr.stable_after, Duration::from_secs(13));
}

/// cluster S1: the facade's default applies unless the file says otherwise.
#[test]
fn the_resolver_is_on_unless_the_file_turns_it_off() {
    let downing = |text| read(text).expect("it reads").settings.cluster.downing;
    let Downing::SplitBrainResolver(sbr) = downing("") else { panic!("the default of the facade") };
    assert_eq!(sbr.strategy, Strategy::KeepMajority { role: None });
    assert_eq!(downing("cluster.downing = \"none\""), Downing::None);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (key, nearest) in [
        ("transport.conection_timeout", "transport.connection_timeout"),
        ("cluster.stable_after", "cluster.sbr.stable_after"),
        ("cluster.sbr.stable_aftr", "cluster.sbr.stable_after"),
        ("management.allow_write", "management.allow_writes"),
    ] {
        let found = problems(&format!("\n\n{key} = 1"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("node.toml:3: {key}: ")), "{found:?}");
        assert!(found[0].ends_with(&format!("did you mean {nearest}?")), "{found:?}");
    }
    let found = problems("[wombat]\nlegs = 4");
    assert!(found[0].starts_with("node.toml:2: wombat.legs: there is no such setting"), "{found:?}");
}

#[test]
fn an_unknown_strategy_is_answered_with_the_names_of_all() {
    let found = problems("cluster.sbr.active_strategy = \"keep_calm\"");
    for name in Strategy::NAMES {
        assert!(found[0].contains(name), "{found:?}");
    }
}

#[test]
fn all_problems_are_reported_together_each_with_key_and_line() {
    let found = problems(
        "[transport]\ncluster_name = 7\nbind_timeout = \"5\"\n[cluster]\nroles = \"one\"\nwhen = 2026-01-01\n[x]\ny = 1\n",
    );
    let begins = [
        "node.toml:2: transport.cluster_name",
        "node.toml:3: transport.bind_timeout",
        "node.toml:5: cluster.roles",
        "node.toml:6: cluster.when",
        "node.toml:8: x.y",
    ];
    assert_eq!(found.len(), begins.len(), "{found:#?}");
    for (found, begin) in found.iter().zip(begins) {
        assert!(found.starts_with(begin), "{found} does not begin with {begin}");
    }
    // Values of the right type that cannot work are found by the checks of the layers.
    let found = problems(
        "[transport]\ncluster_name = \"a\"\noutbound_lanes = 0\n[cluster]\nroles = [\"dc-x\"]\nsbr.stable_after = \"1s\"\n",
    );
    for wanted in
        ["node.toml:3: transport.outbound_lanes", "node.toml:5: cluster.roles", "node.toml:6: cluster.sbr.stable_after"]
    {
        assert!(found.iter().any(|found| found.starts_with(wanted)), "{wanted}: {found:#?}");
    }
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let found = problems("[transport]\ncluster_name = \n");
    assert!(found[0].starts_with("node.toml:2: invalid TOML"), "{found:?}");
    let missing = Config::new().file("/nowhere/greylag.toml").read().unwrap_err().to_string();
    assert!(missing.contains("/nowhere/greylag.toml") && missing.contains("cannot be read"), "{missing}");
}

#[test]
fn the_environment_wins_over_the_file_and_is_checked_alike() {
    let config = Config::new().text("node.toml", "transport.cluster_name = \"file\"\ncluster.roles = [\"file\"]");
    let variables = [
        ("GREYLAG_TRANSPORT__CLUSTER_NAME", "environment"),
        ("GREYLAG_CLUSTER__SBR__STABLE_AFTER", "11s"),
        ("GREYLAG_ADDRESS", "not a setting"),
        ("GREYLAG_TEST__POSTGRES", "not a section"),
        ("HOME", "/root"),
    ];
    let settings = config.clone().variables(variables).read().expect("it reads").settings;
    assert_eq!(settings.transport.cluster_name, "environment");
    assert!(settings.cluster.roles.contains("file"));
    assert_eq!(settings.cluster.stable_after(), Duration::from_secs(11));
    let wrong = config.variables([("GREYLAG_CLUSTER__GOSIP_INTERVAL", "1s")]).read().unwrap_err().to_string();
    assert!(wrong.starts_with("GREYLAG_CLUSTER__GOSIP_INTERVAL: "), "{wrong}");
    assert!(wrong.contains("cluster.gossip_interval"), "{wrong}");
}

/// A variable that looks like a setting but is not read is warned of, with the right name.
#[test]
fn a_misspelt_variable_is_warned_of_with_the_right_name() {
    let warnings = |name: &str| Config::new().variables([(name, "x")]).read().expect("it reads").warnings().to_vec();
    for (name, right) in [
        ("GREYLAG_CLUSTER_SEED_NODES", "GREYLAG_CLUSTER__SEED_NODES for cluster.seed_nodes"),
        ("GREYLAG_CLUSTER_SBR_STABLE_AFTER", "GREYLAG_CLUSTER__SBR__STABLE_AFTER for cluster.sbr.stable_after"),
        ("GREYLAG__TRANSPORT__CLUSTER_NAME", "GREYLAG_TRANSPORT__CLUSTER_NAME for transport.cluster_name"),
        ("GREYLAG__TRANSPORT_CLUSTER_NAME", "GREYLAG_TRANSPORT__CLUSTER_NAME for transport.cluster_name"),
        // No key has such a name in any spelling; the nearest one is named.
        (
            "GREYLAG_CLUSTER_GOSIP_INTERVAL",
            "did you mean GREYLAG_CLUSTER__GOSSIP_INTERVAL for cluster.gossip_interval?",
        ),
    ] {
        let told = warnings(name);
        assert_eq!(told.len(), 1, "{name}: {told:?}");
        assert!(told[0].contains(&format!("variable {name} is not a setting")), "{told:?}");
        assert!(told[0].contains(right), "{told:?}");
    }
    let of_section = warnings("GREYLAG_TRANSPORT_XYZZY");
    assert!(of_section.len() == 1 && of_section[0].contains("GREYLAG_TRANSPORT__"), "{of_section:?}");
    // No warning of settings, of the command line's variables, and of variables of other programs.
    let settings = Config::new().variables([("GREYLAG_TRANSPORT__CLUSTER_NAME", "a"), ("GREYLAG_ADDRESS", "b:1")]);
    assert!(settings.read().expect("it reads").warnings().is_empty());
    for name in ["GREYLAG_TLS_CA", "GREYLAG_CLUSTERS", "CLUSTER_SEED_NODES", "GREYLAG_TEST__POSTGRES"] {
        assert!(warnings(name).is_empty(), "{name}");
    }
}

/// Every shown default reads back, so no key sets another field than it shows.
#[test]
fn every_default_reads_back_and_no_two_keys_share_a_name() {
    let keys = keys::all();
    let names: std::collections::BTreeSet<_> = keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names.len(), keys.len());
    for key in &keys {
        let default = key.default();
        if default.starts_with(char::is_alphabetic) && !["true", "false"].contains(&default.as_str()) {
            continue; // a word, not a value
        }
        let text = format!("{} = {default}", key.name);
        read(&text).unwrap_or_else(|problems| panic!("{text}: {problems}"));
    }
}

/// docs/configuration.md is the document made from the tables.
#[test]
#[cfg(all(
    feature = "delivery",
    feature = "management",
    feature = "journal-sled",
    feature = "journal-postgres",
    feature = "journal-service"
))]
fn configuration_md_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let made = document();
    if std::env::var_os("GREYLAG_BLESS").is_some() {
        std::fs::write(path, &made).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == made,
        "docs/configuration.md is out of date: GREYLAG_BLESS=1 cargo test -p greylag --all-features --lib configuration_md"
    );
}

/// cluster M24: settings that discovery needs are checked before anything starts.
#[test]
#[cfg(feature = "discovery-dns")]
fn discovery_by_dns_needs_a_name_a_port_and_a_number_of_contacts() {
    let found = problems("transport.cluster_name = \"a\"\ncluster.discovery.method = \"dns_addresses\"");
    for key in ["cluster.discovery.name", "cluster.discovery.port", "cluster.bootstrap.required_contacts"] {
        assert!(found.iter().any(|found| found.contains(key)), "{key}: {found:#?}");
    }
    let text = "transport.cluster_name = \"a\"\ncluster.discovery = { method = \"dns_service\", name = \"_a._tcp.b\" }\n\
                cluster.bootstrap.required_contacts = 2";
    read(text).expect("it reads").validate().expect("nothing is missing");
}

/// cluster T40: TLS is chosen by one key and described by others.
#[test]
fn tls_files_come_together() {
    let text = "transport.tls = \"on\"\ntransport.tls_key = \"k\"\ntransport.tls_cert = \"c\"\ntransport.tls_ca = \"a\"\n\
                transport.tls_peer_subject = \"shared\"\ntransport.tls_reload_interval = \"1m\"";
    let settings = read(text).expect("it reads").settings;
    let greylag_transport::Tls::Files(files) = &settings.transport.tls else { panic!("{settings:?}") };
    assert_eq!((files.key.to_str(), files.mutual), (Some("k"), true));
    assert_eq!(files.peer_subject, greylag_transport::PeerSubject::Shared);
    assert_eq!(files.reload_interval, Duration::from_secs(60));
}

/// cluster T40: the admin service has files of its own, by the same names.
#[test]
#[cfg(feature = "management")]
fn the_admin_service_has_its_own_certificate() {
    let text = "transport.cluster_name = \"a\"\nmanagement.address = \"0.0.0.0:1\"\nmanagement.tls = \"on\"\n\
                management.tls_key = \"k\"\nmanagement.tls_cert = \"c\"\nmanagement.tls_ca = \"a\"\n\
                management.tls_mutual = false\nmanagement.tls_peer_subject = \"shop.example\"";
    let read_all = read(text).expect("it reads");
    read_all.validate().expect("nothing is missing");
    let greylag_transport::Tls::Files(files) = &read_all.settings.management.tls else { panic!("{read_all:?}") };
    assert_eq!((files.cert.to_str(), files.mutual), (Some("c"), false));
    assert_eq!(files.peer_subject, greylag_transport::PeerSubject::Named("shop.example".to_owned()));
    assert_eq!(read_all.settings.transport.tls, greylag_transport::Tls::LoopbackOnly);
    let found = problems(
        "transport.cluster_name = \"a\"\nmanagement.address = \"here\"\nmanagement.tls = \"on\"\n\
         management.tls_reload_interval = \"0s\"",
    );
    for key in ["address", "tls_key", "tls_cert", "tls_ca", "tls_reload_interval"] {
        assert!(found.iter().any(|found| found.contains(&format!("management.{key}: "))), "{key}: {found:#?}");
    }
}

/// cluster T28, T29, T30, T19, T41: settings of the reliable part and of idle links.
#[test]
fn the_reliable_part_of_the_transport_is_set_by_file() {
    let text = "[transport]\ncluster_name = \"a\"\nreliable_buffer_size = 7\nreliable_resend_interval = \"2s\"\n\
                give_up_reliable_after = \"1h\"\non_reliable_give_up = \"notify\"\ntermination_flush_timeout = \"4s\"\n\
                stop_idle_outbound_after = \"1m\"\nquarantine_idle_outbound_after = \"2h\"\nlog_frame_size_exceeding = \"64KiB\"";
    let read_all = read(text).expect("it reads");
    read_all.validate().expect("it works");
    let transport = read_all.settings.transport;
    assert_eq!((transport.reliable_buffer_size, transport.reliable_resend_interval), (7, Duration::from_secs(2)));
    assert_eq!(transport.give_up_reliable_after, Duration::from_secs(3600));
    assert_eq!(transport.on_reliable_give_up, greylag_transport::OnReliableGiveUp::Notify);
    assert_eq!(transport.termination_flush_timeout, Duration::from_secs(4));
    assert_eq!(transport.quarantine_idle_outbound_after, Duration::from_secs(7200));
    assert_eq!(transport.log_frame_size_exceeding, Some(64 * 1024));
    let found = problems("transport.on_reliable_give_up = \"panic\"");
    assert!(found[0].contains("\"quarantine\", \"notify\""), "{found:?}");
}

/// cluster §6, "Validation at start": one wrong value for each sentence, of several layers, and all are reported at
/// once, each with its line.
#[test]
fn every_sentence_of_the_validation_is_checked_and_all_problems_come_together() {
    let wrong = [
        "transport.cluster_name = \"a\"",
        "transport.http2_keepalive_interval = \"0s\"",
        "transport.reconnect_backoff_jitter = 1.5",
        "cluster.gossip_different_view_probability = -0.1",
        "cluster.event_buffer = 0",
        "transport.max_batch_bytes = 0",
        "cluster.failure_detector.threshold = 0",
        "cluster.sbr.active_strategy = \"static_quorum\"\ncluster.sbr.static_quorum.quorum_size = 0",
        "cluster.singleton_proxy.buffer_size = 10001",
        "cluster.roles = [\"dc-a\"]",
        "transport.quarantine_idle_outbound_after = \"5m\"",
        "cluster.lease.operation_timeout = \"0s\"",
        "cluster.singleton.removal_margin = \"0s\"",
        "cluster.coordinated_shutdown.service_stop.timeout = \"0s\"",
    ];
    let text = wrong.join("\n");
    let found = problems(&text);
    assert_eq!(found.len(), wrong.len() - 1, "{found:#?}");
    for key in
        wrong[1..].iter().map(|line| line.rsplit('\n').next().expect("a line").split(" =").next().expect("a key"))
    {
        assert!(found.iter().any(|found| found.contains(&format!("{key}: "))), "{key}: {found:#?}");
    }
    // `off` is valid in place of a duration, and a proxy may buffer nothing.
    let fine = "transport.cluster_name = \"a\"\ncluster.weakly_up_after = \"off\"\ncluster.down_removal_margin = \"off\"\n\
                cluster.singleton_proxy.buffer_size = 0";
    read(fine).expect("it reads").validate().expect("it works");
}

const LEASE: &str = "transport.cluster_name = \"a\"\ncluster.sbr.active_strategy = \"lease_majority\"\n";

/// cluster S10: lease_majority needs a store of leases, which a file can name.
#[test]
fn a_store_of_leases_is_named_and_described() {
    let found = problems(LEASE);
    assert!(found.len() == 1 && found[0].contains("cluster.sbr.lease_majority.lease: "), "{found:?}");
    let text = format!("{LEASE}cluster.lease.heartbeat_timeout = \"1m\"\ncluster.lease.heartbeat_interval = \"5s\"");
    let times = read(&text).expect("it reads").settings.cluster.lease;
    assert_eq!(times.heartbeat_timeout, Duration::from_secs(60), "what the resolver's lease lives by");
    let found = problems("transport.cluster_name = \"a\"\ncluster.singleton.use_lease = true");
    assert!(found[0].contains("cluster.singleton.use_lease: ") && found[0].contains("no store"), "{found:?}");
}

/// sharding §4.12: leases of shards need the node's store of leases, by its name.
#[test]
#[cfg(feature = "sharding")]
fn leases_of_shards_need_the_nodes_store_of_leases() {
    let with = |more: &str| format!("transport.cluster_name = \"a\"\nsharding.use_lease = \"own\"\n{more}");
    let found = problems(&with(""));
    assert!(found[0].contains("sharding.use_lease: ") && found[0].contains("no store"), "{found:?}");
    let found = problems(&with("cluster.sbr.lease_majority.lease = \"other\""));
    assert!(found[0].contains("sharding.use_lease: ") && found[0].contains("\"other\""), "{found:?}");
    let fine = with("cluster.sbr.lease_majority.lease = \"own\"");
    read(&fine).expect("it reads").validate().expect("it works");
}

#[test]
#[cfg(feature = "lease-postgres")]
fn the_store_postgres_is_checked_before_anything_starts() {
    let with = |more: &str| format!("{LEASE}cluster.sbr.lease_majority.lease = \"postgres\"\n{more}");
    let fine = with("cluster.lease.postgres.connection = \"host=127.0.0.1 user=a password=secret\"");
    read(&fine).expect("it reads").validate().expect("it works");
    for (more, key, why) in [
        ("", "connection", "needs a connection string"),
        ("cluster.lease.postgres.connection = \"host=a user=b sslmode=verify-full\"", "connection", "sslrootcert"),
        ("cluster.lease.postgres.connection = \"host=a user=b pasword=secret\"", "connection", "invalid"),
        (
            "cluster.lease.postgres.connection = \"host=a user=b\"\ncluster.lease.postgres.password_file = \"/nowhere\"",
            "password_file",
            "/nowhere",
        ),
    ] {
        let found = problems(&with(more));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("cluster.lease.postgres.{key}: ")) && found[0].contains(why), "{found:?}");
        assert!(!found[0].contains("secret"), "{found:?}");
    }
    let shown = format!("{:?}", read(&fine).expect("it reads"));
    assert!(!shown.contains("secret"), "{shown}");
    let listed = problems(&with("cluster.lease.postgres.connection = [\"password=secret\"]"));
    assert!(listed[0].contains("must be text") && !listed[0].contains("secret"), "{listed:?}");
}

/// A source is printed without values: an environment holds secrets, also of other programs.
#[test]
fn debug_output_shows_sources_without_values() {
    let config = Config::new().text("node.toml", "cluster.lease.postgres.connection = \"secret\"");
    let config = config.variables([("GREYLAG_CLUSTER__LEASE__POSTGRES__CONNECTION", "secret"), ("TOKEN", "secret")]);
    let shown = format!("{config:?}");
    assert!(shown.contains("node.toml") && shown.contains("GREYLAG_CLUSTER__LEASE"), "{shown}");
    assert!(!shown.contains("secret") && !shown.contains("TOKEN"), "{shown}");
}

/// persistence §9: every journal is chosen and described by keys.
#[test]
#[cfg(all(feature = "journal-postgres", feature = "journal-sled", feature = "journal-service"))]
fn a_journal_is_chosen_by_a_key_and_described_by_others() {
    use crate::{JournalKind, JournalSettings};

    assert_eq!(read("").unwrap().settings.journal.kind, JournalKind::Program);
    let text = r#"
        [persistence]
        journal = "postgres"
        breaker = { max_failures = 3, call_timeout = "4s", reset_timeout = "5s" }
        snapshot_breaker.max_failures = 7
        query = { refresh_interval = "1s", page = 10, behind_current_time = "250ms", backtracking.window = "1m" }
        projection = { save_after_n = 11, save_after = "12ms", group = 13, on_poison = "skip", remember = "10m", backoff_min = "2s", backoff_max = "3s", backoff_jitter = 0.5 }
        delivery_tracker = { redeliver_interval = "9s", redelivery_burst_limit = 8, warn_after_attempts = 7, max_unconfirmed = 6 }
        [persistence.pg]
        url = "postgres://app:secret@db.example/shop"
        schema = "events"
        migrate = "refuse"
        write_lanes = 8
        pipeline = 3
        pool_read = 9
        pool_query = 5
        statement_timeout = "7s"
        max_batch_bytes = "2MiB"
        [persistence.sled]
        dir = "/var/journal"
        cache_bytes = "32MiB"
        verify_commits = 512
        lock_retry = "1s"
        commit_stall_timeout = "8s"
        min_free_bytes = "1GiB"
        ballast_bytes = 0
        abort_when_stuck = true
        [persistence.service]
        address = "journal.example:17400"
        max_in_flight = 77
    "#;
    let settings = read(text).expect("it reads").settings;
    let JournalSettings { kind, breaker, snapshot_breaker, sled, pg, service } = &settings.journal;
    assert_eq!(*kind, JournalKind::Postgres);
    let seconds = Duration::from_secs;
    assert_eq!((breaker.max_failures.get(), breaker.call_timeout, breaker.reset_timeout), (3, seconds(4), seconds(5)));
    assert_eq!((snapshot_breaker.max_failures.get(), snapshot_breaker.call_timeout), (7, seconds(20)));
    assert_eq!((pg.url.reveal(), pg.settings.schema.as_str()), ("postgres://app:secret@db.example/shop", "events"));
    assert_eq!((pg.settings.write_lanes, pg.settings.pipeline), (8, 3));
    assert_eq!((pg.settings.pool_read, pg.settings.pool_query), (9, 5));
    assert_eq!((pg.settings.statement_timeout, pg.settings.max_batch_bytes), (seconds(7), 2 << 20));
    assert_eq!(pg.settings.behind_current_time, Duration::from_millis(250));
    assert_eq!((sled.dir.to_str(), sled.settings.store.cache_bytes), (Some("/var/journal"), 32 << 20));
    assert_eq!((sled.settings.verify_commits, sled.settings.store.lock_retry), (512, seconds(1)));
    assert_eq!((sled.settings.min_free_bytes, sled.settings.ballast_bytes), (1 << 30, 0));
    assert_eq!((sled.settings.store.commit_stall_timeout, sled.settings.store.abort_when_stuck), (seconds(8), true));
    assert_eq!((service.address.as_str(), service.settings.max_in_flight), ("journal.example:17400", 77));
    let projection = &settings.projection;
    assert_eq!((projection.save_after_n.get(), projection.save_after), (11, Duration::from_millis(12)));
    assert_eq!((projection.group.get(), projection.remember), (13, seconds(600)));
    let backoff = projection.backoff;
    assert_eq!((backoff.min, backoff.max, backoff.jitter), (seconds(2), seconds(3), 0.5));
    assert_eq!((settings.query.page.get(), settings.query.refresh_interval), (10, seconds(1)));
    assert_eq!(settings.query.backtracking.window, seconds(60));
    let tracker = settings.persistence.delivery_tracker;
    assert_eq!((tracker.redeliver_interval, tracker.redelivery_burst_limit.get()), (seconds(9), 8));
    assert_eq!((tracker.warn_after_attempts.get(), tracker.max_unconfirmed.get()), (7, 6));
    assert!(!format!("{settings:?}").contains("secret"), "a password is shown nowhere");
}

/// persistence §9: every invalid value is an error that names its key and line.
#[test]
#[cfg(all(feature = "journal-postgres", feature = "journal-sled", feature = "journal-service"))]
fn every_bad_setting_of_a_journal_names_its_key() {
    for (line, key) in [
        ("journal = \"cassandra\"", "journal"),
        ("journal = \"sled\"", "sled.dir"),
        ("journal = \"postgres\"", "pg.url"),
        ("journal = \"service\"", "service.address"),
        ("pg.write_lanes = 0", "pg.write_lanes"),
        ("pg.write_lanes = 5000", "pg.write_lanes"),
        ("pg.pipeline = 0", "pg.pipeline"),
        ("pg.pool_read = 0", "pg.pool_read"),
        ("pg.pool_query = \"many\"", "pg.pool_query"),
        ("pg.schema = \"\"", "pg.schema"),
        ("pg.migrate = \"perhaps\"", "pg.migrate"),
        ("pg.statement_timeout = \"0s\"", "pg.statement_timeout"),
        ("pg.append_timeout = 5", "pg.append_timeout"),
        ("pg.max_backoff = \"1ms\"", "pg.max_backoff"),
        ("pg.max_batch_bytes = 0", "pg.max_batch_bytes"),
        ("pg.max_clock_lag = \"100ms\"", "pg.max_clock_lag"),
        ("pg.pol_read = 1", "pg.pol_read"),
        ("sled.cache_bytes = 0", "sled.cache_bytes"),
        ("sled.lock_retry = \"0s\"", "sled.lock_retry"),
        ("sled.commit_stall_timeout = \"0s\"", "sled.commit_stall_timeout"),
        ("sled.max_batch_appends = 0", "sled.max_batch_appends"),
        ("sled.max_pending_bytes = 0", "sled.max_pending_bytes"),
        ("sled.segment_size = 1", "sled.segment_size"),
        ("service.max_in_flight = 0", "service.max_in_flight"),
        ("service.unavailable_after = \"0s\"", "service.unavailable_after"),
        ("service.max_backoff = \"1ms\"", "service.max_backoff"),
        ("breaker.max_failures = 0", "breaker.max_failures"),
        ("breaker.call_timeout = \"0s\"", "breaker.call_timeout"),
        ("breaker.reset_timeout = \"0s\"", "breaker.reset_timeout"),
        ("snapshot_breaker.call_timeout = \"0s\"", "snapshot_breaker.call_timeout"),
        ("snapshot_breaker.reset_timeout = \"0s\"", "snapshot_breaker.reset_timeout"),
        ("query.page = 0", "query.page"),
        ("query.refresh_interval = \"0s\"", "query.refresh_interval"),
        ("query.backtracking.window = \"0s\"", "query.backtracking.window"),
        ("query.backtracking.behind = \"0s\"", "query.backtracking.behind"),
        ("query.catchup_overlap = \"0s\"", "query.catchup_overlap"),
        ("query.linger = \"0s\"", "query.linger"),
        ("query.slow_consumer_lag = \"0s\"", "query.slow_consumer_lag"),
        ("query.abort_after = \"0s\"", "query.abort_after"),
        ("query.fanout_buffer = 0", "query.fanout_buffer"),
        ("query.behind_current_time = \"0s\"", "query.behind_current_time"),
        ("projection.save_after_n = 0", "projection.save_after_n"),
        ("projection.save_after = \"0s\"", "projection.save_after"),
        ("projection.forget_interval = \"0s\"", "projection.forget_interval"),
        ("projection.remember = \"1s\"", "projection.remember"),
        ("projection.backoff_min = \"0s\"", "projection.backoff_min"),
        ("projection.backoff_max = \"1ms\"", "projection.backoff_max"),
        ("projection.backoff_jitter = 3.0", "projection.backoff_jitter"),
        ("delivery_tracker.redeliver_interval = \"0s\"", "delivery_tracker.redeliver_interval"),
        ("delivery_tracker.redelivery_burst_limit = 0", "delivery_tracker.redelivery_burst_limit"),
        ("delivery_tracker.warn_after_attempts = 0", "delivery_tracker.warn_after_attempts"),
        ("delivery_tracker.max_unconfirmed = 0", "delivery_tracker.max_unconfirmed"),
        ("delivery_tracker.max_confirmed = 1", "delivery_tracker.max_confirmed"),
        ("recovery_event_timeout = \"0s\"", "recovery_event_timeout"),
    ] {
        let found = problems(&format!("transport.cluster_name = \"a\"\npersistence.{line}\n"));
        // The problem of a missing key has no line.
        let (with_line, without) = (format!("node.toml:2: persistence.{key}: "), format!("persistence.{key}: "));
        assert!(
            found.len() == 1
                && (found[0].starts_with(&with_line) || line.starts_with("journal") && found[0].contains(&without)),
            "{line}: {found:?}"
        );
    }
}

/// A journal whose feature is not compiled in is refused by name, not ignored.
#[test]
#[cfg(all(feature = "persistence", not(feature = "journal-sled")))]
fn a_journal_without_its_feature_is_refused() {
    let found = problems("transport.cluster_name = \"a\"\npersistence.journal = \"sled\"");
    assert!(
        found.len() == 1 && found[0].contains("persistence.journal: \"sled\": this program was built without"),
        "{found:?}"
    );
}
