//! Lists, page by page, to their end.

use serde::de::DeserializeOwned;

use super::escape;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::types::Page;

/// Members asked for at a time.
const PAGE: usize = 500;

/// Most bytes of a list that is kept in memory, as it comes: millions of commits.
const KEPT_BYTES_MAX: usize = 2 << 30;

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
    mut take: impl FnMut(Vec<T>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let page_after = |wanted, after: Option<&str>| client.get(&part(query, wanted, after));
    walk(limit, |items, _| take(items), page_after)
}

/// The path of a part of a list.
fn part(query: &str, wanted: usize, after: Option<&str>) -> String {
    let join = if query.contains('?') { '&' } else { '?' };
    let after = after.map(|after| format!("&after={}", escape(after)));
    format!("{query}{join}limit={wanted}{}", after.unwrap_or_default())
}

/// All members of a list, or the first `limit`.
///
/// # Errors
///
/// As [`each_page`]; or there is more than a command keeps. A list is never shorter than it is.
pub(super) fn pages<T: DeserializeOwned>(
    client: &Client,
    query: &str,
    limit: usize,
) -> Result<Vec<T>, Failure> {
    pages_within(client, query, (limit, KEPT_BYTES_MAX), |_| false)
}

/// The members of a list, up to where `ends` says of what it would go on with that no more is wanted.
///
/// # Errors
///
/// As [`pages`].
pub(super) fn pages_until<T: DeserializeOwned>(
    client: &Client,
    query: &str,
    ends: impl Fn(&str) -> bool,
) -> Result<Vec<T>, Failure> {
    pages_within(client, query, (usize::MAX, KEPT_BYTES_MAX), ends)
}

fn pages_within<T: DeserializeOwned>(
    client: &Client,
    query: &str,
    (limit, bytes_max): (usize, usize),
    ends: impl Fn(&str) -> bool,
) -> Result<Vec<T>, Failure> {
    let (mut all, mut bytes) = (Vec::new(), 0_usize);
    let page_after = |wanted, after: Option<&str>| {
        let page = client.get_bytes(&part(query, wanted, after))?;
        bytes = bytes.saturating_add(page.len());
        if bytes > bytes_max {
            return Err(Failure::error(format_args!(
                "the list has more than {bytes_max} bytes, which is more than a command keeps: ask \
                 for a part of it"
            )));
        }
        client.answer(&page)
    };
    let take = |items: Vec<T>, next: Option<&str>| {
        all.extend(items);
        Ok(!next.is_some_and(&ends))
    };
    walk(limit, take, page_after)?;
    Ok(all)
}

fn walk<T>(
    limit: usize,
    mut take: impl FnMut(Vec<T>, Option<&str>) -> Result<bool, Failure>,
    mut page_after: impl FnMut(usize, Option<&str>) -> Result<Page<T>, Failure>,
) -> Result<bool, Failure> {
    let (mut after, mut left): (Option<String>, _) = (None, limit);
    while left > 0 {
        let page = page_after(left.min(PAGE), after.as_deref())?;
        left = left.saturating_sub(page.items.len());
        if !take(page.items, page.next.as_deref())? {
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
    use crate::told::Told;

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
            let keep = |page, _: Option<&str>| {
                all.extend::<Vec<usize>>(page);
                Ok(true)
            };
            assert_eq!(walk(limit, keep, list(5000)).unwrap(), more);
            assert_eq!(all, (0..told).collect::<Vec<_>>());
        }
        // Whoever has enough says so.
        let mut pages = 0;
        let enough = |_, _: Option<&str>| {
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
        assert!(walk(usize::MAX, |_, _| Ok(true), again).is_err());
    }

    /// A server with a list of the numbers below 3, one a page.
    fn numbers() -> Told {
        Told::new(|call, _| {
            let at = call
                .rsplit_once("after=")
                .map_or(0, |(_, at)| at.parse().unwrap());
            let next = (at < 2).then(|| (at + 1).to_string());
            (
                200,
                serde_json::json!({ "items": [at], "next": next }).to_string(),
            )
        })
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes() {
        let server = numbers();
        let client = server.client();
        let kept = |bytes_max| {
            pages_within::<usize>(&client, "/list?x=y", (usize::MAX, bytes_max), |_| false)
        };
        assert_eq!(kept(1000).unwrap(), [0, 1, 2]);
        let failure = kept(40).unwrap_err();
        assert!(failure.message.contains("more than 40 bytes"), "{failure}");
        assert_eq!(pages::<usize>(&client, "/list", 2).unwrap(), [0, 1]);
        let heard = server.heard();
        assert_eq!(heard[0], "GET /list?x=y&limit=500");
        assert_eq!(heard[1], "GET /list?x=y&limit=500&after=1");
        assert_eq!(heard.last().unwrap(), "GET /list?limit=1&after=1");
    }

    #[test]
    fn nothing_is_asked_for_that_is_not_wanted() {
        let server = numbers();
        let client = server.client();
        let found = pages_until::<usize>(&client, "/list", |next| next == "2");
        assert_eq!(found.unwrap(), [0, 1]);
        assert_eq!(server.heard().len(), 2);
    }
}
