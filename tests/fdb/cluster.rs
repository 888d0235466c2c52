//! What the crate `foundationdb` promises, on the emulator or a real cluster, and what becomes of it
//! when the emulator goes wrong. One test, because a process starts the network once.

#[cfg(test)]
mod rig;

#[cfg(test)]
mod cases;

#[cfg(test)]
mod tests {
    use super::cases::{commits, errors, faults, processes, reads, watches, writes};
    use super::rig::{self, cases};

    #[test]
    fn cluster() {
        if let Some((role, file, prefix)) = processes::role() {
            processes::start(&file, prefix, async |rig| {
                processes::play(&role, &rig).await;
            });
            return;
        }
        // A case with faults, also with one that never comes (`cut@1000`), is for the emulator alone.
        rig::run_all(&cases![
            reads::values_and_absence,
            reads::own_writes_are_read_back,
            reads::ranges_forwards_backwards_and_limited,
            reads::every_mode_reads_a_long_range_whole,
            reads::selectors,
            reads::keys_outside_are_refused,
            reads::wrong_range_reads_are_refused,
            writes::atomic_operations,
            writes::sizes_are_limited,
            writes::a_size_limit_is_kept,
            writes::versionstamps,
            writes::stamped_writes_cannot_be_read,
            commits::read_only_commits,
            commits::conflicts,
            commits::snapshot_reads_and_own_keys_do_not_conflict,
            commits::a_read_version_set_by_hand_is_told_unseen,
            commits::conflict_ranges_at_a_known_version,
            commits::blind_writes_do_not_conflict,
            commits::a_range_read_conflicts_over_what_it_returned,
            commits::the_metadata_version,
            commits::increments_of_many_transactions_all_count,
            errors::predicates_and_texts,
            errors::a_reset_forgets,
            errors::a_timeout_ends_everything_until_the_reset,
            errors::a_retry_limit_is_kept_by_retries_and_not_by_a_reset,
            errors::on_error_does_not_retry_what_may_still_land,
            errors::database_defaults_hold_for_new_transactions,
            errors::cancelled_transactions,
            errors::used_after_the_commit,
            watches::fire_when_the_value_changes,
            watches::fail_with_their_transaction,
            processes::two_processes_and_this_one_count_together,
            processes::a_killed_process_harms_nobody,
            faults::applied_but_unknown => "unknown-applied@1",
            faults::dropped_and_unknown => "unknown-dropped@1",
            faults::bursts_of_conflicts => "conflict@2",
            faults::too_old => "too-old@1 too-old@3",
            faults::of_the_future_and_behind => "future@1 behind@2",
            faults::a_read_version_ages => "cut@1000",
            faults::a_straggler_lands_after_the_timeout => "straggle@1:300",
            faults::a_straggler_is_fenced => "straggle@2:300",
            faults::answers_come_late_and_out_of_order => "delay=100%:40",
            faults::ranges_are_cut => "cut=100%",
            faults::a_recovery_makes_versions_jump => "jump@2",
            faults::a_watch_fires_for_nothing => "watch@1",
            faults::unreachable_for_a_while => "unreachable@2:400",
            faults::a_lost_server => "straggle@1:60000",
            faults::a_seed_repeats_itself => "cut@1000",
            faults::counts_survive_everything => "cut@1000",
        ]);
    }
}
