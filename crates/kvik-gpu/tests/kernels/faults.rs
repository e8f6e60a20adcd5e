//! Devices that are not there, lost, or asked for too much.

use kvik_gpu::{Choice, Device, DeviceArena, DeviceError, devices};
use kvik_kernels::{KvFormat, KvLayer, KvLayout};

use crate::{device, upload, zeros};

#[test]
fn devices_are_listed_with_name_and_limits() {
    if device().is_none() {
        return;
    }
    for (index, info) in devices().into_iter().enumerate() {
        assert_eq!(info.index, index);
        assert!(!info.name.is_empty() && !info.driver.is_empty(), "{info:?}");
        assert!(info.binding_bytes_max >= 128 << 20 && info.buffer_bytes_max >= 128 << 20, "{info:?}");
    }
}

#[test]
fn a_number_that_no_device_has_is_named() {
    let Some(_) = device() else { return };
    let error = Device::open(Choice::Index(99)).unwrap_err();
    assert_eq!(error, DeviceError::NotFound { wanted: 99, count: devices().len() });
    assert!(error.to_string().contains("no GPU 99"), "{error}");
}

#[test]
fn what_a_device_does_not_allow_is_refused_before_it_is_asked_for() {
    let Some(device) = device() else { return };
    let limit = device.info().binding_bytes_max;
    let error = device.zeros::<u32>("the arena", limit as usize / 4 + 4).unwrap_err();
    assert_eq!(error, DeviceError::Limit { what: "the arena".to_owned(), bytes: limit + 16, limit });
    let layout = KvLayout::uniform(2, KvLayer::full(8, 128, KvFormat::F16, KvFormat::F16));
    let error = DeviceArena::new(&device, layout, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("layer 0 in 1048576 blocks") && error.contains("fewer blocks"), "{error}");
    // It goes on.
    let buffer = upload(&device, &[1.0, 2.0]);
    assert_eq!(device.read(&buffer).unwrap(), [1.0, 2.0]);
}

#[test]
fn a_lost_device_says_so_at_every_call_and_another_one_can_be_opened() {
    let Some(mut lost) = device() else { return };
    let (mut x, y) = (upload(&lost, &[1.0]), upload(&lost, &[2.0]));
    lost.destroy();
    let is_lost = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Lost { .. })), "{result:?}");
    };
    let mut step = lost.step();
    let added = step.add(&mut x, 1, (&y, 1));
    is_lost(added.and(step.submit()));
    is_lost(lost.read(&x).map(|_| ()));
    is_lost(lost.zeros::<u32>("anything", 1).map(|_| ()));
    is_lost(lost.check());
    let other = device().unwrap();
    let buffer = zeros(&other, 1);
    assert_eq!(other.read(&buffer).unwrap(), [0.0]);
}

/// A step that is read is one submission, and buffers of earlier steps serve later ones.
#[test]
fn a_step_and_its_results_are_one_submission() {
    let Some(mut device) = device() else { return };
    let (mut x, y) = (upload(&device, &[1.0, 2.0, 3.0]), upload(&device, &[10.0, 20.0, 30.0]));
    for round in 1..4 {
        let before = device.work();
        let ids = device.upload_for_step("rows", &[2u32, 0]).unwrap();
        let mut out = zeros(&device, 2);
        let mut step = device.step();
        step.add(&mut x, 3, (&y, 3)).unwrap();
        step.gather(&x, &ids, [2, 1], &mut out).unwrap();
        let reading = step.submit_reading(&[out.part(0..2), x.part(1..2)]).unwrap();
        let mut found: Vec<f32> = Vec::new();
        device.finish_reading(reading, |bytes| kvik_gpu::replace_elements(&mut found, bytes)).unwrap();
        device.reuse(ids);
        let times = round as f32;
        assert_eq!(found, [3.0 + 30.0 * times, 1.0 + 10.0 * times, 2.0 + 20.0 * times]);
        let after = device.work();
        assert_eq!(after.submissions - before.submissions, 1);
        assert_eq!(after.dispatches - before.dispatches, 2);
        // The rows and the room to read are made in the first round; the results of the test in each.
        assert_eq!(after.allocations - before.allocations, if round == 1 { 3 } else { 1 });
    }
}

#[test]
fn kernels_are_timed_by_the_clock_of_the_device() {
    let Some(mut device) = device() else { return };
    if !device.info().timestamps {
        return kvik_testing::skip("the driver has no time stamps");
    }
    device.time_kernels(true).unwrap();
    let (mut x, y) = (upload(&device, &vec![1.0; 1 << 16]), upload(&device, &[1.0]));
    let mut step = device.step();
    step.add(&mut x, 1 << 16, (&y, 1)).unwrap();
    step.add(&mut x, 1 << 16, (&y, 1)).unwrap();
    step.submit().unwrap();
    let times = device.kernel_times();
    assert_eq!((times.len(), times[0].kernel.as_str(), times[0].runs), (1, "add", 2));
    assert_eq!(times[0].groups, 2 * (1 << 16) / 64);
    assert!(times[0].ns > 0);
    assert_eq!(device.read(&x).unwrap()[7], 3.0);
}
