//! Includes the pages of `docs/guide` as doc tests, so that their programs keep compiling and running.

macro_rules! pages {
    ($($(#[$when:meta])? $name:ident = $file:literal;)+) => {
        $(
            $(#[$when])?
            #[doc = include_str!(concat!("../../../docs/guide/", $file))]
            mod $name {}
        )+
    };
}

pages! {
    #[cfg(all(feature = "sharding", feature = "persistence"))] first_entity = "2-first-entity.md";
    #[cfg(feature = "sharding")] three_nodes = "3-three-nodes.md";
    #[cfg(all(feature = "sharding", feature = "journal-sled"))] events = "4-events.md";
    #[cfg(feature = "delivery")] nothing_lost = "5-nothing-lost.md";
    #[cfg(feature = "ddata")] replicated_data = "6-replicated-data.md";
    #[cfg(feature = "persistence")] testing = "7-testing.md";
    production = "8-production.md";
}
