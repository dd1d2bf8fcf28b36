//! Fair shares, live.

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Encoding, Framework, Setup};
use serde_json::Value;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        weights_1_and_3_converge_on_shares_of_1_to_3;
}

/// Two greedy frameworks, one task an offer, until the machine is full.
fn weights_1_and_3_converge_on_shares_of_1_to_3() {
    let setup = Setup {
        master_flags: vec![
            "--weights=one=1,three=3".to_owned(),
            "--allocation_interval=50ms".to_owned(),
        ],
        agent_flags: vec!["--resources=cpus:1.6;mem:1600;disk:10".to_owned()],
        ..Setup::default()
    };
    let cluster = Cluster::start(setup);
    let url = cluster.scheduler_url();
    let mut one = Framework::subscribe(&url, Encoding::Json, &framework_info("one"));
    let mut three = Framework::subscribe(&url, Encoding::Protobuf, &framework_info("three"));
    let mut task_counts = [0_usize, 0];
    while task_counts[0] + task_counts[1] < 16 {
        for (index, framework) in [&mut one, &mut three].into_iter().enumerate() {
            let is_offer = |event: &Value| event["type"] == "OFFERS";
            let Ok(event) = framework.within(std::time::Duration::from_millis(100), &is_offer)
            else {
                continue;
            };
            for offer in event["offers"]["offers"].as_array().expect("offers") {
                let id = format!("t{}", task_counts[index]);
                framework.launch_task(offer, &id, "sleep 600", &[("cpus", 0.1), ("mem", 10.0)]);
                task_counts[index] += 1;
            }
        }
    }
    assert_eq!(task_counts, [4, 12], "0.4 and 1.2 of 1.6 cpus");
    one.teardown();
    three.teardown();
}
