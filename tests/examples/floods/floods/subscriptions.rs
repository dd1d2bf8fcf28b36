//! Subscriptions that cost: a hundred thousand constraints, very large infos, many frameworks that come and go.

use std::time::{Duration, Instant};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::scheduler::attribute_constraint::{
    Predicate, Selector, predicate, selector,
};
use meseta_proto::mesos::v1::scheduler::offer_constraints::{RoleConstraints, role_constraints};
use meseta_proto::mesos::v1::scheduler::{AttributeConstraint, OfferConstraints};

use crate::bench::{Bench, Tally};
use crate::scheduler::{Scheduler, Subscription};

const NAME: &str = "subscriptions";
const CONSTRAINTS: usize = 100_000;
const LARGE: usize = 4;
const LARGE_BYTES: usize = 16 << 20;
const MANY: usize = 200;
const MANY_BYTES: usize = 32 << 10;
const PAUSE: Duration = Duration::from_secs(5);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    while !bench.time.is_over() {
        constrained(bench, tally);
        bench.time.pause(PAUSE);
        for _ in 0..LARGE {
            if bench.time.is_over() {
                break;
            }
            labelled(bench, tally, "large", LARGE_BYTES);
        }
        bench.time.pause(PAUSE);
        for _ in 0..MANY {
            if bench.time.is_over() {
                break;
            }
            labelled(bench, tally, "small", MANY_BYTES);
        }
        bench.time.pause(PAUSE);
    }
    Ok(())
}

/// Subscribes with many different regular expressions in its constraints.
fn constrained(bench: &Bench, tally: &Tally) {
    let one = |number: usize| {
        let regex = format!("^(node|host)-{number}-[a-z]{{2,9}}\\.rack[0-9]+$");
        let constraint = AttributeConstraint {
            selector: Selector {
                selector: Some(selector::Selector::AttributeName("rack".to_owned())),
            },
            predicate: Predicate {
                predicate: Some(predicate::Predicate::TextMatches(predicate::TextMatches {
                    regex,
                })),
            },
        };
        role_constraints::Group {
            attribute_constraints: vec![constraint],
        }
    };
    let groups = (0..CONSTRAINTS).map(one).collect();
    let role_constraints = [(NAME.to_owned(), RoleConstraints { groups })].into();
    let mut subscription = Subscription::hostile(&[NAME]);
    subscription.constraints = Some(OfferConstraints { role_constraints });
    let began = Instant::now();
    come_and_go(bench, tally, "constrained", subscription);
    tally.most("ms for the slowest constrained one", began.elapsed());
}

/// Subscribes with labels of this number of bytes.
fn labelled(bench: &Bench, tally: &Tally, what: &str, bytes: usize) {
    let mut subscription = Subscription::hostile(&[NAME]);
    let label = pb::Label {
        key: "large".to_owned(),
        value: Some("x".repeat(bytes)),
    };
    subscription.info.labels = Some(pb::Labels {
        labels: vec![label],
    });
    come_and_go(bench, tally, what, subscription);
}

fn come_and_go(bench: &Bench, tally: &Tally, what: &str, subscription: Subscription) {
    match Scheduler::subscribe(&bench.fleet, subscription) {
        Ok(Ok(scheduler)) => {
            tally.count(format!("{what} taken"));
            if let Err(error) = scheduler.teardown() {
                tally.count(format!("{what} TEARDOWN {:?}", error.kind()));
            }
        }
        Ok(Err(status)) => tally.count(format!("{what} {status}")),
        Err(error) => tally.count(format!("{what} {:?}", error.kind())),
    }
}
