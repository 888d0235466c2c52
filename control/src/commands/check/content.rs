//! Reading all content that is stored.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::IsTerminal;

use base::{ChunkId, DomainId};
use chunkstore::local::{LocalReader, VerifyCounts};
use metadata::check::{Remedy, Report};
use metadata::keyspace::{self, Key};
use metadata::kv::{Isolation, Kv, KvError, RangeLimit};
use metadata::record::workspace::TenantRecord;
use metadata::tree::TreeKeys;

use crate::output;

/// Bytes between two signs of life.
const BYTES_BETWEEN: u64 = 1 << 30;

/// Tenants read at a time.
const PAGE: usize = 1000;

/// Damaged chunks that are told one by one.
const DAMAGED_MAX: usize = 1000;

/// The keys that the names of each domain's chunks are made with: files', and nodes'.
pub(super) type Domains = HashMap<DomainId, Vec<[u8; 32]>>;

/// What was found of the stored content.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) counts: VerifyCounts,
    /// What is no damage and yet worth knowing.
    pub(super) notes: Vec<String>,
    /// Whether each content was compared with its name.
    pub(super) is_deep: bool,
    /// Places and what is wrong there, the first of them.
    problems: Vec<(String, String)>,
    /// How many of these are not told.
    left_out: u64,
}

/// The keys of all domains. A damaged tenant is told where it is read; its chunks are not compared
/// with their names.
pub(super) async fn domains(kv: &dyn Kv) -> Result<Domains, KvError> {
    let mut domains = HashMap::new();
    let mut range = keyspace::tenants();
    loop {
        // Nobody else uses the store.
        let page = kv
            .begin()
            .get_range(&range, RangeLimit::pairs(PAGE), Isolation::Snapshot)
            .await?;
        for (key, value) in &page.pairs {
            let (Ok(Key::Tenant(id)), Ok(tenant)) =
                (keyspace::decode(key), TenantRecord::decode(value))
            else {
                continue;
            };
            let domain = DomainId::new(id.raw());
            // Where nodes end does not matter to their names.
            let nodes = TreeKeys::new(domain, &tenant.domain_key, &[0; 32]);
            domains.insert(domain, vec![tenant.domain_key, *nodes.node_key()]);
        }
        match page.pairs.last() {
            Some((last, _)) if page.more => {
                range.start = metadata::kv::KeyRange::key(last).end;
            }
            _ => return Ok(domains),
        }
    }
}

/// Reads all content that is stored; with `domains` each is compared with its name.
pub(super) fn verify(chunks: &LocalReader, domains: Option<&Domains>) -> Content {
    let mut content = Content {
        counts: VerifyCounts::default(),
        notes: Vec::new(),
        is_deep: domains.is_some(),
        problems: Vec::new(),
        left_out: 0,
    };
    for pack in chunks.unreadable() {
        let place = pack.path.display().to_string();
        let what = format!(
            "cannot be read, and nothing in it was checked: {}",
            pack.why
        );
        content.problem(place, what);
    }
    let keys_of = |domain: DomainId| -> Vec<[u8; 32]> {
        let found = domains.and_then(|domains| domains.get(&domain));
        found.cloned().unwrap_or_default()
    };
    let names: Option<chunkstore::local::NameKeys<'_>> = match domains {
        Some(_) => Some(&keys_of),
        None => None,
    };
    let (done, told) = (Cell::new(0_u64), Cell::new(0_u64));
    let is_shown = std::io::stderr().is_terminal();
    let mut damaged: Vec<ChunkId> = Vec::new();
    let counts = chunks.verify(names, |chunk| {
        done.set(done.get() + chunk.record_bytes);
        if is_shown && done.get() >= told.get() + BYTES_BETWEEN {
            told.set(done.get());
            let (done, all) = (done.get() >> 20, chunks.stored_bytes() >> 20);
            output::note(&format!("read {done} of {all} MiB of content"));
        }
        if !chunk.intact && damaged.len() < DAMAGED_MAX {
            damaged.push(chunk.id);
        }
    });
    content.left_out = counts
        .damaged
        .saturating_sub(u64::try_from(damaged.len()).unwrap_or(u64::MAX));
    for id in damaged {
        content.problem(format!("chunk {id}"), "its content is damaged".to_owned());
    }
    let known = u64::try_from(chunks.unreadable().len()).unwrap_or(u64::MAX);
    if counts.unreadable_packs > known {
        let what = format!(
            "{} packs became unreadable while they were read",
            counts.unreadable_packs - known
        );
        content.problem("chunks".to_owned(), what);
    }
    content.notes.extend(chunks.torn().iter().map(|tail| {
        format!(
            "{} ends in {} bytes of a record that was never finished; the next server does not \
             use them, and nothing that was acknowledged is in them",
            tail.path.display(),
            tail.bytes
        )
    }));
    content.counts = counts;
    content
}

impl Content {
    fn problem(&mut self, place: String, what: String) {
        self.problems.push((place, what));
    }

    /// Adds what was found to what was found of the metadata.
    pub(super) fn tell(&self, report: &mut Report) {
        for (place, what) in &self.problems {
            report.add(place.clone(), what.clone(), Remedy::Store);
        }
        report.problems_total += self.left_out;
    }
}
