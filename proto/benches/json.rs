//! The cost of one large `OFFERS` event, in and out, in both encodings.
//!
//! A hundred offers, about 99 KB of JSON. The goal on a machine of two shared cores: JSON in within 0.55 ms, out within 0.19
//! ms, which is the time of serde's derived code.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use meseta_proto::mesos::v1::scheduler::Event;
use meseta_proto::{json, protobuf};
use serde_json::json;

const OFFERS: usize = 100;

fn offers() -> Vec<u8> {
    let id = |kind: &str, number: usize| json!({"value": format!("d0753d79-eb2b-481e-839f-23d9abe2caae-{kind}{number}")});
    let reserved = json!({"type": "DYNAMIC", "role": "ads/serving", "principal": "ops"});
    let resource = |name: &str, value: f64| {
        json!({"name": name, "type": "SCALAR", "scalar": {"value": value},
            "allocation_info": {"role": "ads/serving"}})
    };
    let offer = |number: usize| {
        let host = format!("node-{number:05}.example.com");
        let mut reserved_mem = resource("mem", 1024.0);
        reserved_mem["reservations"] = json!([reserved]);
        json!({
            "id": id("O", number), "framework_id": id("F", 7), "agent_id": id("S", number),
            "hostname": host,
            "url": {"scheme": "http", "path": "/slave(1)",
                "address": {"hostname": host, "ip": "10.0.0.1", "port": 5051}},
            "resources": [
                resource("cpus", 7.5), resource("mem", 14336.0), resource("disk", 102400.0),
                reserved_mem,
                {"name": "ports", "type": "RANGES", "allocation_info": {"role": "ads/serving"},
                    "ranges": {"range": [{"begin": 31000, "end": 31999}]}},
            ],
            "attributes": [{"name": "rack", "type": "TEXT", "text": {"value": "r17"}}],
            "allocation_info": {"role": "ads/serving"},
        })
    };
    let offers: Vec<_> = (0..OFFERS).map(offer).collect();
    serde_json::to_vec(&json!({"type": "OFFERS", "offers": {"offers": offers}})).unwrap()
}

fn bench(criterion: &mut Criterion) {
    let event: Event = json::from_slice(&offers()).unwrap();
    let text = json::to_vec(&event);
    let wire = protobuf::to_vec(&event);
    let mut group = criterion.benchmark_group(format!("offers_{}k", text.len() / 1000));

    group.throughput(Throughput::Bytes(u64::try_from(text.len()).unwrap()));
    group.bench_function("json_in", |bencher| {
        bencher.iter(|| json::from_slice::<Event>(black_box(&text)).unwrap());
    });
    group.bench_function("json_out", |bencher| {
        bencher.iter(|| json::to_vec(black_box(&event)))
    });
    group.bench_function("value_in", |bencher| {
        bencher.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(&text)).unwrap());
    });

    group.throughput(Throughput::Bytes(u64::try_from(wire.len()).unwrap()));
    group.bench_function("binary_in", |bencher| {
        bencher.iter(|| protobuf::from_slice::<Event>(black_box(&wire)).unwrap());
    });
    group.bench_function("binary_required_check", |bencher| {
        bencher.iter(|| protobuf::missing_required::<Event>(black_box(&wire)));
    });
    group.bench_function("binary_out", |bencher| {
        bencher.iter(|| protobuf::to_vec(black_box(&event)));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
