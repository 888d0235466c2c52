//! Lists, page by page, to their end.

use serde::de::DeserializeOwned;

use super::escape;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::types::Page;

/// Members asked for at a time.
const PAGE: usize = 500;

/// Most members that are kept in memory: more commits than a bundle should have.
const KEPT_MAX: usize = 4_000_000;

/// Gives the pages of the list that `query` asks for to `take`, until it says that it has enough, or
/// `limit` members have come. Says whether there are more.
///
/// # Errors
///
/// The server refuses, does not answer, or gives the same page again; or `take` fails.
pub(super) fn each_page<T: DeserializeOwned>(
    client: &Client,
    query: &str,
    limit: usize,
    take: impl FnMut(Vec<T>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let join = if query.contains('?') { '&' } else { '?' };
    walk(limit, take, |wanted, after| {
        let after = after.map(|after| format!("&after={}", escape(after)));
        let after = after.unwrap_or_default();
        client.get(&format!("{query}{join}limit={wanted}{after}"))
    })
}

/// All members of a list, or the first `limit`.
///
/// # Errors
///
/// As [`each_page`]; or there are more than a command keeps. A list is never shorter than it is.
pub(super) fn pages<T: DeserializeOwned>(
    client: &Client,
    query: &str,
    limit: usize,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    each_page(client, query, limit, |page| {
        if all.len() + page.len() > KEPT_MAX {
            return Err(Failure::error(format_args!(
                "the list has more than {KEPT_MAX} members, which is more than a command takes: ask \
                 for a part of it"
            )));
        }
        all.extend(page);
        Ok(true)
    })?;
    Ok(all)
}

fn walk<T>(
    limit: usize,
    mut take: impl FnMut(Vec<T>) -> Result<bool, Failure>,
    mut page_after: impl FnMut(usize, Option<&str>) -> Result<Page<T>, Failure>,
) -> Result<bool, Failure> {
    let (mut after, mut left): (Option<String>, _) = (None, limit);
    while left > 0 {
        let page = page_after(left.min(PAGE), after.as_deref())?;
        left = left.saturating_sub(page.items.len());
        if !take(page.items)? {
            return Ok(false);
        }
        if page.next.is_none() {
            return Ok(false);
        }
        if page.next == after {
            let message = "the server gives the same part of a list again and again";
            return Err(Failure::new(FailureKind::Error, message));
        }
        after = page.next;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of so many numbers, one a page, and every other page without any.
    fn list(length: usize) -> impl FnMut(usize, Option<&str>) -> Result<Page<usize>, Failure> {
        move |wanted, after| {
            assert!((1..=PAGE).contains(&wanted));
            let at = after.map_or(0, |after| after.parse().unwrap());
            let items = if at % 2 == 0 { vec![at / 2] } else { vec![] };
            let next = (at + 1 < 2 * length).then(|| (at + 1).to_string());
            Ok(Page { items, next })
        }
    }

    #[test]
    fn lists_are_read_to_their_end() {
        for (limit, told, more) in [(usize::MAX, 5000, false), (7, 7, true), (5000, 5000, true)] {
            let mut all = Vec::new();
            let keep = |page| {
                all.extend::<Vec<usize>>(page);
                Ok(true)
            };
            assert_eq!(walk(limit, keep, list(5000)).unwrap(), more);
            assert_eq!(all, (0..told).collect::<Vec<_>>());
        }
        // Whoever has enough says so.
        let mut pages = 0;
        let enough = |_| {
            pages += 1;
            Ok(pages < 3)
        };
        assert!(!walk(usize::MAX, enough, list(5000)).unwrap());
        assert_eq!(pages, 3);
    }

    #[test]
    fn a_list_that_goes_in_a_circle_is_an_error() {
        let again = |_, _: Option<&str>| {
            Ok(Page {
                items: vec![0],
                next: Some("x".to_owned()),
            })
        };
        assert!(walk(usize::MAX, |_| Ok(true), again).is_err());
    }
}
