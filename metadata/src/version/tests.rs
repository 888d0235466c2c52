use proptest::prelude::*;

use super::*;

fn name(text: &str) -> RefName {
    RefName::new(text).unwrap()
}

fn prefix(text: &str) -> IdPrefix {
    text.parse().unwrap()
}

fn seconds(text: &str) -> u64 {
    u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_second()).unwrap()
}

fn at(text: &str) -> Time {
    Time::At(Timestamp::new(seconds(text), 0))
}

#[test]
fn expressions_are_read() {
    let id = CommitId::new([0xa5; 32]);
    let whole = id.to_string();
    let of = |text| Start::Name(name(text), None);
    let of_id = |text| Start::Name(name(text), Some(prefix(text)));
    let main = |time| Start::At(RefName::main(), time);
    let ten = at("2026-11-24T10:00:00Z");
    let hours = Time::Ago(3, Unit::Seconds(3600));
    let cases: Vec<(&str, Start, Vec<Step>)> = vec![
        ("main", of("main"), vec![]),
        ("  main\n", of("main"), vec![]),
        ("agent/x-1", of("agent/x-1"), vec![]),
        ("abc", of("abc"), vec![]),
        ("abcd", of_id("abcd"), vec![]),
        ("2026", of_id("2026"), vec![]),
        (&whole, Start::Id(id), vec![]),
        (&whole[1..], of_id(&whole[1..]), vec![]),
        ("main~", of("main"), vec![Step::Up(1)]),
        ("main~3", of("main"), vec![Step::Up(3)]),
        ("main^", of("main"), vec![Step::Parent(1)]),
        ("main^2", of("main"), vec![Step::Parent(2)]),
        ("main^0", of("main"), vec![Step::Parent(0)]),
        (
            "abcd^^2~10000~",
            of_id("abcd"),
            vec![
                Step::Parent(1),
                Step::Parent(2),
                Step::Up(10_000),
                Step::Up(1),
            ],
        ),
        ("now", main(Time::Now), vec![]),
        ("today", main(Time::Today), vec![]),
        (
            "yesterday",
            main(Time::Ago(1, Unit::Seconds(86_400))),
            vec![],
        ),
        ("3 hours ago", main(hours), vec![]),
        ("3-hours-ago", main(hours), vec![]),
        ("3 hours ago~2", main(hours), vec![Step::Up(2)]),
        ("Last Tuesday", main(Time::Last(Weekday::Tuesday)), vec![]),
        ("2026-11-24T10:00Z", main(ten), vec![]),
        ("@{2026-11-24T10:00Z}", main(ten), vec![]),
        ("main@{2026-11-24T10:00Z}", main(ten), vec![]),
        (
            "main@{2026-11-24T10:00Z}^",
            main(ten),
            vec![Step::Parent(1)],
        ),
        ("v1@{3 hours ago}", Start::At(name("v1"), hours), vec![]),
        ("a@b@{now}", Start::At(name("a@b"), Time::Now), vec![]),
    ];
    for (text, start, steps) in cases {
        assert_eq!(text.parse(), Ok(Version { start, steps }), "{text}");
    }
}

#[test]
fn what_is_no_version_is_told_and_what_would_be_one() {
    let name = |error| Wrong::Name(error);
    let long = "x".repeat(VERSION_BYTES_MAX + 1);
    let cases: Vec<(&str, Wrong)> = vec![
        ("", Wrong::Empty),
        (" \n", Wrong::Empty),
        ("~1", Wrong::Empty),
        ("^", Wrong::Empty),
        (&long, Wrong::Long),
        ("a b", name(RefNameError::Character)),
        ("5 parsecs ago", name(RefNameError::Character)),
        ("main@{now", Wrong::Brace),
        ("-x", name(RefNameError::Part)),
        ("a//b", name(RefNameError::Slash)),
        ("ü", name(RefNameError::Character)),
        ("a..b", name(RefNameError::Part)),
        ("a:b@{now}", Wrong::NameBeforeTime(RefNameError::Character)),
        ("now@{now}", Wrong::NameBeforeTime(RefNameError::Time)),
        ("main@{now}x", Wrong::Brace),
        ("main@{}", Wrong::Time(TimeError::Unknown)),
        ("main@{1}", Wrong::Time(TimeError::Unknown)),
        ("main@{5 parsecs ago}", Wrong::Time(TimeError::Unknown)),
        ("2026-02-30", Wrong::Time(TimeError::Impossible)),
        ("2026-11-24T25:00Z", Wrong::Time(TimeError::Impossible)),
        ("2026-11-24T10:00+99:00", Wrong::Time(TimeError::Impossible)),
        (
            "2026-11-24T10:00[Europe/Zurich]",
            Wrong::Time(TimeError::Impossible),
        ),
        ("1969-12-31", Wrong::Time(TimeError::Range)),
        ("main~x", Wrong::Step),
        ("main~1x", Wrong::Step),
        ("main~-1", Wrong::Step),
        ("main~10001", Wrong::Step),
        ("main^17", Wrong::Step),
        ("main~99999999999999999999", Wrong::Step),
        ("main~1 ~2", Wrong::Step),
    ];
    for (text, why) in cases {
        let error = text.parse::<Version>().unwrap_err();
        assert_eq!(error.why, why, "{text}");
        let said = error.to_string();
        assert!(said.contains("at least 4 of its first digits"), "{said}");
        assert!(said.len() < 2000, "{said}");
    }
    let steps = format!("main{}", "^".repeat(33));
    assert_eq!(steps.parse::<Version>().unwrap_err().why, Wrong::Step);
    assert!(steps[..steps.len() - 1].parse::<Version>().is_ok());
    let said = "a b".parse::<Version>().unwrap_err().to_string();
    assert!(
        said.starts_with("\"a b\" is no version: it is no time and no id"),
        "{said}"
    );
    assert!(said.contains(". A version is a branch or tag"), "{said}");
    let brace = "main@{now}x".parse::<Version>().unwrap_err().to_string();
    assert!(brace.contains("'@{' needs a '}'"), "{brace}");
}

/// It is Wednesday.
#[test]
fn times_are_reckoned_from_now() {
    let now = Timestamp::new(seconds("2026-11-25T15:30:20Z"), 5);
    let cases = [
        ("now", "2026-11-25T15:30:20Z", 5),
        ("NOW", "2026-11-25T15:30:20Z", 5),
        ("today", "2026-11-25T00:00:00Z", 0),
        ("yesterday", "2026-11-24T15:30:20Z", 5),
        ("0 seconds ago", "2026-11-25T15:30:20Z", 5),
        ("30 seconds ago", "2026-11-25T15:29:50Z", 5),
        ("a minute ago", "2026-11-25T15:29:20Z", 5),
        ("90 min ago", "2026-11-25T14:00:20Z", 5),
        ("an hour ago", "2026-11-25T14:30:20Z", 5),
        ("3 hours ago", "2026-11-25T12:30:20Z", 5),
        ("3.hours.ago", "2026-11-25T12:30:20Z", 5),
        ("2 days ago", "2026-11-23T15:30:20Z", 5),
        ("2  Days  Ago", "2026-11-23T15:30:20Z", 5),
        ("one week ago", "2026-11-18T15:30:20Z", 5),
        ("1 month ago", "2026-10-25T15:30:20Z", 5),
        ("9 months ago", "2026-02-25T15:30:20Z", 5),
        ("2 years ago", "2024-11-25T15:30:20Z", 5),
        ("last hour", "2026-11-25T14:30:20Z", 5),
        ("last week", "2026-11-18T15:30:20Z", 5),
        ("last year", "2025-11-25T15:30:20Z", 5),
        ("last tuesday", "2026-11-24T15:30:20Z", 5),
        ("last wednesday", "2026-11-18T15:30:20Z", 5),
        ("last thu", "2026-11-19T15:30:20Z", 5),
        ("last_sunday", "2026-11-22T15:30:20Z", 5),
        ("2026-11-24", "2026-11-24T00:00:00Z", 0),
        ("2026-11-24T10:00Z", "2026-11-24T10:00:00Z", 0),
        ("2026-11-24T10:00:07Z", "2026-11-24T10:00:07Z", 0),
        ("2026-11-24t10:00:07z", "2026-11-24T10:00:07Z", 0),
        ("2026-11-24 10:00", "2026-11-24T10:00:00Z", 0),
        ("2026-11-24T10:00:07", "2026-11-24T10:00:07Z", 0),
        (
            "2026-11-24T10:00:07.5Z",
            "2026-11-24T10:00:07Z",
            500_000_000,
        ),
        ("2026-11-24T10:00+01:00", "2026-11-24T09:00:00Z", 0),
        ("2026-11-24T10:00-05:30", "2026-11-24T15:30:00Z", 0),
        ("1970-01-01", "1970-01-01T00:00:00Z", 0),
    ];
    for (text, expected, nanos) in cases {
        let time = text.parse::<Time>().unwrap().at(now).unwrap();
        assert_eq!(time, Timestamp::new(seconds(expected), nanos), "{text}");
    }
}

#[test]
fn times_that_cannot_be_reckoned() {
    let now = Timestamp::new(seconds("2026-11-25T15:30:20Z"), 5);
    // The last day of a month that has fewer.
    let march = Timestamp::new(seconds("2026-03-31T00:00:00Z"), 0);
    let then = "1 month ago".parse::<Time>().unwrap().at(march);
    assert_eq!(then, Ok(Timestamp::new(seconds("2026-02-28T00:00:00Z"), 0)));
    for far in [
        "60 years ago",
        "4294967295 years ago",
        "4294967295 weeks ago",
        "700 months ago",
    ] {
        let time = far.parse::<Time>().unwrap().at(now);
        assert_eq!(time, Err(TimeError::Range), "{far}");
    }
    for bad in [
        "",
        "ago",
        "hours ago",
        "4294967296 days ago",
        "-1 days ago",
        "-1-days-ago",
        "3--hours-ago",
        "3-hours ago",
        "last",
        "last foo",
    ] {
        assert_eq!(bad.parse::<Time>(), Err(TimeError::Unknown), "{bad}");
    }
}

#[test]
fn every_day_of_the_week_is_within_the_last_seven() {
    let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let monday = seconds("2026-11-23T12:00:00Z");
    for today in 0..7 {
        let now = Timestamp::new(monday + today * DAY, 0);
        for (index, day) in (0_u64..).zip(days) {
            let time = format!("last {day}")
                .parse::<Time>()
                .unwrap()
                .at(now)
                .unwrap();
            let ago = (now.seconds() - time.seconds()) / DAY;
            assert!((1..=7).contains(&ago), "{today} {day}");
            assert_eq!((today + 7 - ago) % 7, index, "{today} {day}");
        }
    }
}

#[test]
fn the_bounds_of_a_prefix() {
    let (first, last) = prefix("A5b0C").bounds();
    assert_eq!(first.to_string(), format!("a5b0c{}", "0".repeat(59)));
    assert_eq!(last.to_string(), format!("a5b0c{}", "f".repeat(59)));
    let whole = "a5".repeat(32);
    let (first, last) = prefix(&whole).bounds();
    assert_eq!((first, first.to_string()), (last, whole.clone()));
    for bad in ["", "abc", "abcg", &format!("{whole}a"), "ab cd", "ábcd"] {
        assert_eq!(bad.parse::<IdPrefix>(), Err(PrefixError), "{bad}");
    }
}

/// Texts that are nearly expressions.
fn nearly() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("main".to_owned()),
        Just("@{".to_owned()),
        Just("}".to_owned()),
        Just("~".to_owned()),
        Just("^".to_owned()),
        Just(" ".to_owned()),
        Just("-".to_owned()),
        Just("ago".to_owned()),
        Just("last".to_owned()),
        Just("tuesday".to_owned()),
        Just("now".to_owned()),
        Just("hours".to_owned()),
        Just("years".to_owned()),
        Just("2026-11-24".to_owned()),
        Just("T10:00".to_owned()),
        Just("Z".to_owned()),
        Just("+01:00".to_owned()),
        Just("ü".to_owned()),
        "[0-9a-f]{1,10}",
        any::<u64>().prop_map(|number| number.to_string()),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

fn printed(version: &Version) -> Option<String> {
    let start = match &version.start {
        Start::Id(id) => id.to_string(),
        Start::Name(name, _) => name.to_string(),
        // Printing a time is not needed anywhere.
        Start::At(..) => return None,
    };
    let steps = version.steps.iter().map(|step| match step {
        Step::Up(count) => format!("~{count}"),
        Step::Parent(number) => format!("^{number}"),
    });
    Some(std::iter::once(start).chain(steps).collect())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![nearly(), any::<String>()], now in any::<u64>()) {
        match text.parse::<Version>() {
            Ok(version) => {
                if let Start::At(_, time) = version.start
                    && let Ok(then) = time.at(Timestamp::new(now, 0))
                    && !matches!(time, Time::At(_))
                {
                    prop_assert!(then <= Timestamp::new(now, 0));
                }
                if let Some(text) = printed(&version) {
                    prop_assert_eq!(text.parse(), Ok(version));
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("is no version")),
        }
    }

    /// What may be the name of a ref is read as that ref and as nothing else.
    #[test]
    fn a_ref_is_never_taken_for_something_else(text in nearly()) {
        if let Ok(name) = RefName::new(&text) {
            let version: Version = text.parse().unwrap();
            prop_assert!(matches!(version.start, Start::Name(found, _) if found == name));
            prop_assert!(version.steps.is_empty());
        }
    }
}
