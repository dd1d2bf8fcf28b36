//! Invalid calls: each returns a typed error and leaves the allocator unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocator, Constraint, Error, FrameworkSpec, InverseAnswer,
    OfferConstraints, Options, Pattern, Predicate, Quota, Selector, quantities,
};
use meseta_resources::{
    AgentId, Conversion, FrameworkId, Moment, ResourceName, Resources, Role, Scalar,
};

const NOW: Moment = Moment::ORIGIN;

fn role(name: &str) -> Role {
    Role::new(name).expect("a valid role")
}

fn roles(names: &[&str]) -> BTreeSet<Role> {
    names.iter().map(|name| role(name)).collect()
}

fn agent(name: &str) -> AgentId {
    AgentId::new(name).expect("a valid id")
}

fn framework(name: &str) -> FrameworkId {
    FrameworkId::new(name).expect("a valid id")
}

/// A known agent; `b` is unknown.
fn a() -> AgentId {
    agent("a")
}

fn b() -> AgentId {
    agent("b")
}

/// A known framework; `g` is unknown.
fn f() -> FrameworkId {
    framework("f")
}

fn g() -> FrameworkId {
    framework("g")
}

fn resources(text: &str) -> Resources {
    Resources::parse(text, &Role::star()).expect("valid resources")
}

fn allocated(text: &str) -> Resources {
    resources(text).allocate(&role("r"))
}

fn agent_spec(text: &str) -> AgentSpec {
    AgentSpec::new(AgentFacts::named("host"), resources(text))
}

fn in_roles(names: &[&str]) -> FrameworkSpec {
    FrameworkSpec {
        roles: roles(names),
        ..Default::default()
    }
}

/// A single agent, of which half is offered to one framework and a part is declined.
fn allocator() -> Allocator {
    let mut allocator = Allocator::new(Options::default());
    allocator
        .add_framework(&f(), &in_roles(&["r", "s"]), true, &BTreeMap::new())
        .expect("new");
    allocator
        .suppress(&f(), &roles(&["s"]))
        .expect("subscribed");
    allocator
        .add_agent(&a(), agent_spec("cpus:4;mem:400;ports:[1-9]"))
        .expect("new");
    assert_eq!(allocator.allocate(NOW).len(), 1);
    let refuse = Some(Duration::from_secs(60));
    allocator
        .recover_resources(NOW, &f(), &a(), &allocated("cpus:2;mem:100"), refuse)
        .expect("held");
    allocator
        .update_weights(&[(role("r"), 2.0)])
        .expect("valid");
    let quota = Quota {
        guarantees: quantities(&resources("cpus:1")).expect("plain"),
        ..Quota::default()
    };
    allocator.update_quota(&role("q"), &quota).expect("valid");
    allocator
}

type Call = fn(&mut Allocator) -> Result<(), Error>;

fn deep_role() -> Role {
    role(&["deep"; 40].join("/"))
}

fn used(text: &str) -> AgentSpec {
    let mut spec = agent_spec("cpus:1");
    spec.used.insert(f(), resources(text));
    spec
}

fn constrained(groups: Vec<Vec<Constraint>>) -> FrameworkSpec {
    let constraints = BTreeMap::from([(role("r"), OfferConstraints { groups })]);
    FrameworkSpec {
        constraints,
        ..in_roles(&["r"])
    }
}

fn add(allocator: &mut Allocator, id: FrameworkId, spec: &FrameworkSpec) -> Result<(), Error> {
    allocator.add_framework(&id, spec, true, &BTreeMap::new())
}

fn recover(allocator: &mut Allocator, resources: &Resources) -> Result<(), Error> {
    allocator.recover_resources(NOW, &f(), &a(), resources, None)
}

fn release_cpu(allocator: &mut Allocator, of: FrameworkId, on: AgentId) -> Result<(), Error> {
    allocator.recover_resources(NOW, &of, &on, &allocated("cpus:1"), None)
}

fn limit(millis: i64, guarantee: i64) -> Quota {
    let cpus = ResourceName::cpus();
    let guarantees = [(cpus.clone(), Scalar::from_millis(guarantee))]
        .into_iter()
        .collect();
    let limits = [(cpus, Scalar::from_millis(millis))].into_iter().collect();
    Quota {
        guarantees,
        limits,
        legacy: false,
    }
}

const CALLS: &[(&str, Call)] = &[
    ("add a known agent", |it| {
        it.add_agent(&a(), agent_spec("cpus:1"))
    }),
    ("add an agent whose total is allocated", |it| {
        it.add_agent(
            &b(),
            AgentSpec::new(AgentFacts::named("h"), allocated("cpus:1")),
        )
    }),
    ("add an agent whose use is not allocated", |it| {
        it.add_agent(&b(), used("cpus:1"))
    }),
    ("remove an unknown agent", |it| it.remove_agent(&b())),
    ("update an unknown agent", |it| {
        it.update_agent(&b(), None, None).map(drop)
    }),
    ("update an agent to an allocated total", |it| {
        it.update_agent(&a(), None, Some(&allocated("cpus:1")))
            .map(drop)
    }),
    ("activate an unknown agent", |it| it.activate_agent(&b())),
    ("deactivate an unknown agent", |it| {
        it.deactivate_agent(&b())
    }),
    ("a provider of an unknown agent", |it| {
        it.add_provider(&b(), &resources("cpus:1"), &BTreeMap::new())
    }),
    ("a provider whose use is not allocated", |it| {
        let used = BTreeMap::from([(f(), resources("cpus:1"))]);
        it.add_provider(&a(), &resources("cpus:1"), &used)
    }),
    ("add a known framework", |it| {
        add(it, f(), &in_roles(&["r"]))
    }),
    ("add a framework with an over-deep role", |it| {
        let spec = FrameworkSpec {
            roles: BTreeSet::from([deep_role()]),
            ..Default::default()
        };
        add(it, g(), &spec)
    }),
    ("add a framework that suppresses what it has not", |it| {
        let spec = FrameworkSpec {
            suppressed: roles(&["x"]),
            ..in_roles(&["r"])
        };
        add(it, g(), &spec)
    }),
    ("add a framework with an empty group of constraints", |it| {
        add(it, g(), &constrained(vec![vec![]]))
    }),
    ("update an unknown framework", |it| {
        it.update_framework(&g(), &in_roles(&["r"]))
    }),
    ("update a framework with contradictions", |it| {
        let spec = FrameworkSpec {
            suppressed: roles(&["x"]),
            ..in_roles(&["r"])
        };
        it.update_framework(&f(), &spec)
    }),
    ("remove an unknown framework", |it| {
        it.remove_framework(&g())
    }),
    ("activate an unknown framework", |it| {
        it.activate_framework(&g())
    }),
    ("deactivate an unknown framework", |it| {
        it.deactivate_framework(&g())
    }),
    ("suppress an unknown framework", |it| {
        it.suppress(&g(), &roles(&["r"]))
    }),
    ("suppress a role not subscribed to", |it| {
        it.suppress(&f(), &roles(&["r", "x"]))
    }),
    ("revive a role not subscribed to", |it| {
        it.revive(&f(), &roles(&["s", "x"]))
    }),
    ("a weight of 0", |it| {
        it.update_weights(&[(role("s"), 5.0), (role("r"), 0.0)])
    }),
    ("a negative weight", |it| {
        it.update_weights(&[(role("r"), -1.0)])
    }),
    ("a weight that is not a number", |it| {
        it.update_weights(&[(role("r"), f64::NAN)])
    }),
    ("an infinite weight", |it| {
        it.update_weights(&[(role("r"), f64::INFINITY)])
    }),
    ("a weight of an over-deep role", |it| {
        it.update_weights(&[(deep_role(), 2.0)])
    }),
    ("a quota of an over-deep role", |it| {
        it.update_quota(&deep_role(), &limit(2, 1))
    }),
    ("a limit below the guarantee", |it| {
        it.update_quota(&role("q"), &limit(1000, 2000))
    }),
    ("a negative limit", |it| {
        it.update_quota(&role("q"), &limit(-1, 0))
    }),
    ("a quota in ranges", |_| {
        Quota::legacy(&resources("cpus:1;ports:[1-5]")).map(drop)
    }),
    ("a quota of what is reserved", |_| {
        Quota::legacy(&resources("cpus(r):1")).map(drop)
    }),
    ("a quota below one without", |it| {
        it.check_quota_tree(&role("x/y"), &limit(2000, 1000))
    }),
    ("release on an unknown agent", |it| {
        release_cpu(it, f(), b())
    }),
    ("release of an unknown framework", |it| {
        release_cpu(it, g(), a())
    }),
    ("release of more than is held", |it| {
        recover(it, &allocated("cpus:2.001"))
    }),
    ("release of what is free", |it| {
        recover(it, &allocated("cpus:1;mem:301"))
    }),
    ("release of a name that nobody has", |it| {
        recover(it, &allocated("cpus:1;unicorns:1"))
    }),
    ("release of ports that are not there", |it| {
        recover(it, &allocated("ports:[9-10]"))
    }),
    ("release of a reservation that is none", |it| {
        recover(it, &allocated("cpus(r):1"))
    }),
    ("release without a role", |it| {
        recover(it, &resources("cpus:1"))
    }),
    ("release in part without a role", |it| {
        recover(it, &(allocated("cpus:1") + resources("mem:1")))
    }),
    ("release in a role that holds nothing", |it| {
        recover(it, &resources("cpus:1").allocate(&role("s")))
    }),
    ("release in a role that nobody knows", |it| {
        recover(it, &resources("cpus:1").allocate(&role("nobody")))
    }),
    ("convert what is not held", |it| {
        let conversions = [
            Conversion::new(allocated("cpus:1"), allocated("cpus(r):1")),
            Conversion::new(allocated("cpus:2"), allocated("cpus(r):2")),
        ];
        it.update_allocation(&f(), &a(), &conversions)
    }),
    ("convert into another role's", |it| {
        let other = resources("cpus:1").allocate(&role("s"));
        let conversions = [Conversion::new(allocated("cpus:1"), other)];
        it.update_allocation(&f(), &a(), &conversions)
    }),
    ("convert without a role", |it| {
        let conversions = [Conversion::new(resources("cpus:1"), resources("cpus(r):1"))];
        it.update_allocation(&f(), &a(), &conversions)
    }),
    ("convert for an unknown framework", |it| {
        it.update_allocation(&g(), &a(), &[])
    }),
    ("operate on what is not free", |it| {
        let conversions = [
            Conversion::new(resources("cpus:1"), resources("cpus(r):1")),
            Conversion::new(resources("cpus:2"), resources("cpus(r):2")),
        ];
        it.update_available(&a(), &conversions)
    }),
    ("operate on what is allocated", |it| {
        let conversions = [Conversion::new(allocated("cpus:1"), allocated("cpus(r):1"))];
        it.update_available(&a(), &conversions)
    }),
    ("maintenance of an unknown agent", |it| {
        it.update_unavailability(&b(), None)
    }),
    ("an answer about no maintenance", |it| {
        it.update_inverse_offer(NOW, &a(), &f(), Some(InverseAnswer::Accept), None)
    }),
    ("explain an unknown agent", |it| {
        it.explain(NOW, &f(), &role("r"), &b()).map(drop)
    }),
    ("explain an unknown framework", |it| {
        it.explain(NOW, &g(), &role("r"), &a()).map(drop)
    }),
    ("a cycle over an unknown agent", |it| {
        it.sweep_agent(NOW, &b()).map(drop)
    }),
];

#[test]
fn wrong_calls_change_nothing() {
    let mut allocator = allocator();
    let (before, digest) = (allocator.describe(), allocator.digest());
    for (what, call) in CALLS {
        let error = call(&mut allocator).expect_err(what);
        assert!(!error.to_string().is_empty());
        assert_eq!(allocator.describe(), before, "{what}");
        assert_eq!(allocator.digest(), digest, "{what}");
    }
}

#[test]
fn each_error_explains_the_bad_input() {
    let mut allocator = allocator();
    let mut error = |what: &str| {
        let (_, call) = CALLS
            .iter()
            .find(|entry| entry.0 == what)
            .expect("in the table");
        call(&mut allocator).expect_err(what)
    };
    assert_eq!(error("add a known agent"), Error::DuplicateAgent(a()));
    assert_eq!(error("remove an unknown agent"), Error::UnknownAgent(b()));
    assert_eq!(
        error("a quota in ranges"),
        Error::QuotaNotScalar(ResourceName::ports())
    );
    assert_eq!(
        error("a weight that is not a number").to_string(),
        "the weight of role 'r' must be a finite number above 0, not NaN"
    );
    assert_eq!(
        error("release of more than is held").to_string(),
        "framework f holds no cpus(allocated: r):2.001 on agent a"
    );
    assert!(matches!(
        error("a quota of an over-deep role"),
        Error::RoleTooDeep { depth: 40, .. }
    ));
    assert!(matches!(
        error("a limit below the guarantee"),
        Error::LimitBelowGuarantee { .. }
    ));
}

#[test]
fn patterns_are_limited() {
    assert!(Pattern::new("(").is_err());
    assert!(Pattern::new("(a{1000}){1000}").is_err());
    assert!(Pattern::new("rack-[0-9]+").is_ok());
    // A match of these patterns may be in very many states at once; each text would cost as many steps.
    let many = "(?:[ -~]*[0-9][ -~]{0,40}|[ -~]*[a-m][ -~]{0,40}|[ -~]*[aeiou][ -~]{0,40})!";
    let refusal = Pattern::new(many).expect_err("too many states");
    assert!(refusal.to_string().contains("too many states"), "{refusal}");
    assert!(Pattern::new(".*a.{40}").is_err());
    assert!(Pattern::new(".*a.{40}|.*b.*").is_err());
    let alternatives: Vec<String> = (0..80).map(|number| format!("node-{number}")).collect();
    assert!(Pattern::new(&alternatives.join("|")).is_ok());
}

fn is_match(pattern: &Pattern, text: &str) -> bool {
    let matches = Constraint {
        selector: Selector::Hostname,
        predicate: Predicate::TextMatches(pattern.clone()),
    };
    let constraints = OfferConstraints {
        groups: vec![vec![matches]],
    };
    constraints.allow(&AgentFacts::named(text))
}

#[test]
fn accepts_patterns_with_unanchored_alternatives() {
    let words: Vec<String> = (0..20).map(|number| format!("part{number}")).collect();
    let list = |suffix: &str| {
        let each = words.iter().map(|word| format!(".*{word}{suffix}"));
        each.collect::<Vec<_>>().join("|")
    };
    let plain = list(".*");
    for (pattern, before) in [
        (plain.clone(), ""),
        (format!("({plain})"), ""),
        (format!("(?i){plain}"), ""),
        (format!("(?:one|two)-({plain})"), "two-"),
        (format!("(?:a|{})", list(r"\b.*")), ""),
    ] {
        let compiled = Pattern::new(&pattern).expect("a pattern");
        assert!(
            (20..64).contains(&compiled.tables()),
            "{}",
            compiled.tables()
        );
        assert!(compiled.bytes() < 512 * 1024, "{} bytes", compiled.bytes());
        for (text, expected) in [
            ("xpart7", true),
            ("xpart19 y", true),
            ("ü part19", true),
            ("xpart", false),
            ("ü xpart", false),
            ("", false),
        ] {
            let text = format!("{before}{text}");
            assert_eq!(is_match(&compiled, &text), expected, "{pattern} {text}");
        }
    }
    let many: Vec<String> = (0..200).map(|number| format!(".*{number}.*")).collect();
    assert!(Pattern::new(&many.join("|")).is_err());
}

#[test]
fn patterns_match_whole_texts() {
    for (pattern, text) in [
        ("", ""),
        ("rack-[0-9]+", "rack-17"),
        ("a|ab", "ab"),
        ("a.*|b", "b"),
        (r"\w+", "zürich1"),
        (r"(?i)zone-[abc]\..*", "ZONE-B.example"),
        (r".*\bgpu\b.*", "large gpu node"),
        (r".*\bgpü\b.*", "large gpü node"),
        ("^node$", "node"),
    ] {
        let compiled = Pattern::new(pattern).expect("a pattern");
        assert!(is_match(&compiled, text), "{pattern} {text}");
    }
    for (pattern, text) in [
        ("rack-[0-9]+", "rack-17 "),
        ("a|b", "ab"),
        (r".*\bgpu\b.*", "gpus"),
        (r".*\bgpü\b.*", "gpüs"),
        ("node", "a node"),
        ("", "a"),
    ] {
        let compiled = Pattern::new(pattern).expect("a pattern");
        assert!(!is_match(&compiled, text), "{pattern} {text}");
    }
}

#[test]
fn removed_agent_leaves_no_trace() {
    let mut allocator = allocator();
    let before = allocator.describe();
    allocator
        .add_agent(&b(), agent_spec("cpus:1;cpus(x/y):2;mem:10"))
        .expect("new");
    assert_ne!(allocator.describe(), before);
    allocator.remove_agent(&b()).expect("known");
    assert_eq!(allocator.describe(), before);
    allocator
        .add_framework(&g(), &in_roles(&["z/w"]), false, &BTreeMap::new())
        .expect("new");
    allocator.remove_framework(&g()).expect("known");
    assert_eq!(allocator.describe(), before);
}
