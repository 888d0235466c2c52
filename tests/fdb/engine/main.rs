//! The FoundationDB engine of `metadata::kv` through the real client crate, over the emulator: the
//! suite of all engines, the store on it, and what it says when something is wrong. One test, because
//! a process starts the network once.

#[cfg(test)]
mod cases;

#[cfg(test)]
#[path = "../emulator.rs"]
mod emulator;

#[cfg(test)]
mod tests {
    use super::cases;

    #[test]
    fn engine() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        if let Some(file) = std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE") {
            runtime.block_on(cases::the_suite_on_a_real_cluster(file.into()));
            drop(runtime);
            metadata::kv::fdb::stop_network();
            return;
        }
        runtime.block_on(async {
            cases::wrong_options_are_told().await;
            cases::a_silent_cluster_is_not_waited_for_long().await;
            cases::one_network_for_all_stores().await;
            cases::prefixes_do_not_see_each_other().await;
            cases::what_the_trait_has_beyond_the_library().await;
            cases::calls_are_counted_by_how_they_end().await;
            cases::commits_that_may_land_late_are_unknown().await;
            cases::a_commit_that_times_out_is_looked_up().await;
            cases::the_suite_of_all_engines("none").await;
            cases::the_suite_of_all_engines("cut=50%,delay=20%:5").await;
            cases::counts_survive_all_faults().await;
            cases::the_store_survives_all_faults().await;
        });
        drop(runtime);
        cases::the_network_ends_once();
    }
}
