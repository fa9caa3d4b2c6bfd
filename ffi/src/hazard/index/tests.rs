use super::*;
use crate::random::Random;

/// What the tree must be like below a node: how high it is. Adds its items to `seen`.
fn check(index: &Index, at: u32, seen: &mut Vec<u32>) -> usize {
    let node = &index.nodes[at];
    assert!(at == index.root || node.len >= LEAST, "a node has {} entries", node.len);
    if node.is_leaf {
        for item in &node.items[..node.len] {
            assert_eq!(index.homes[*item as usize], at, "an item's leaf is another one");
            seen.push(*item);
        }
        return 1;
    }
    let heights = (0..node.len).map(|position| {
        let (entry, child) = (node.get(position), &index.nodes[node.items[position]]);
        let next = if position + 1 < node.len { node.starts[position + 1] } else { u64::MAX };
        assert_eq!(child.parent, at, "a child's parent is another one");
        assert!(entry.start <= child.start() && entry.end == child.end(), "a node knows its child wrongly");
        assert!(child.starts[..child.len].iter().all(|start| *start <= next), "an entry is too far left");
        check(index, entry.item, seen)
    });
    let heights: Vec<usize> = heights.collect();
    assert!(heights.iter().all(|height| *height == heights[0]), "a leaf is higher than another");
    heights[0] + 1
}

/// Random entries come and go; `hull` draws one.
fn compare_with_a_list(items: usize, steps: u64, hull: impl Fn(&mut Random) -> Range<u64>) {
    let (mut index, mut list) = (Index::new(items), vec![None; items]);
    let mut random = Random::new(7);
    for step in 0..steps {
        // Mostly fills, then mostly empties.
        let is_filling = (step / (items as u64 * 2)).is_multiple_of(2);
        let item = random.below(items as u64) as usize;
        let stays = list[item].is_some() && is_filling && random.below(4) > 0;
        if list[item].take_if(|_| !stays).is_some() {
            index.remove(item as u32);
        } else if list[item].is_none() && (is_filling || random.below(4) == 0) {
            let hull = hull(&mut random);
            index.insert(item as u32, &hull);
            list[item] = Some(hull);
        }
        let asked = hull(&mut random);
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        index.overlapping(&asked, &mut |item| found.push(item));
        found.sort_unstable();
        let overlaps = |other: &Range<u64>| asked.start.max(other.start) < asked.end.min(other.end);
        let expected = (0..items as u32).filter(|item| list[*item as usize].as_ref().is_some_and(overlaps));
        assert_eq!(found, expected.collect::<Vec<_>>(), "step {step}");
        if step % 16 == 0 {
            check(&index, index.root, &mut seen);
            assert_eq!(seen.len(), list.iter().flatten().count());
        }
    }
}

#[test]
fn a_search_finds_what_overlaps_and_nothing_else() {
    compare_with_a_list(600, 30_000, |random| {
        let start = random.below(10_000);
        start..start + 1 + random.of_any_size(11)
    });
}

#[test]
fn entries_that_begin_together_are_told_apart() {
    compare_with_a_list(300, 20_000, |random| {
        let start = random.below(3) * 100;
        start..start + 1 + random.below(250)
    });
}

#[test]
fn the_whole_space_can_be_asked_for_and_kept() {
    let mut index = Index::new(100);
    for item in 0..50 {
        index.insert(item, &(0..u64::MAX));
        index.insert(item + 50, &(u64::MAX - 1..u64::MAX));
    }
    let count = |index: &Index, hull| {
        let mut found = 0;
        index.overlapping(&hull, &mut |_| found += 1);
        found
    };
    assert_eq!([count(&index, 0..u64::MAX), count(&index, 0..1)], [100, 50]);
    (0..100).for_each(|item| index.remove(item));
    assert_eq!(count(&index, 0..u64::MAX), 0);
}
