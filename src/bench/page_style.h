// The style sheet of all report pages.
#pragma once

namespace levin::bench {

inline constexpr const char* kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #fbfbf9; --ink: #1c1f23; --soft: #62686f; --line: #dfe1dc; --card: #ffffff;
  --track: #eceee9; --baseline: #8a9199; --ours: #1a7f64; --failed: #c2412d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --ink: #e6e8ea; --soft: #9aa2aa; --line: #2c3237; --card: #1b1f23;
    --track: #262b30; --baseline: #7d8790; --ours: #35b08c; --failed: #ea6a54;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { font-size: 1.7rem; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; }
.soft { color: var(--soft); font-size: .9rem; }
.answer {
  margin: 1.25rem 0; padding: .9rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-left: 4px solid var(--ours); border-radius: 6px;
}
.legend span { display: inline-block; margin-right: 1.2rem; }
.legend i {
  display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px;
  vertical-align: -.05em;
}
.row {
  display: grid; grid-template-columns: 11.5rem 1fr 12rem; gap: .75rem; align-items: center;
  padding: .2rem 0; font-variant-numeric: tabular-nums;
}
.row .name { font-weight: 600; font-size: .92rem; }
.row .value { font-size: .88rem; white-space: nowrap; }
.track { position: relative; height: 1.15rem; background: var(--track); border-radius: 3px; }
.bar { position: absolute; inset: 0 auto 0 0; border-radius: 3px; min-width: 2px; }
.baseline { background: var(--baseline); }
.ours { background: var(--ours); }
.undecided {
  background: repeating-linear-gradient(135deg, var(--ours) 0 5px,
    color-mix(in srgb, var(--ours) 55%, var(--track)) 5px 10px);
}
.failed { background: var(--failed); }
.whisker {
  position: absolute; top: 50%; height: 0; border-top: 2px solid var(--ink); opacity: .75;
}
.whisker::before, .whisker::after {
  content: ""; position: absolute; top: -5px; height: 8px; border-left: 2px solid var(--ink);
}
.whisker::before { left: 0; }
.whisker::after { right: 0; }
.dot {
  position: absolute; top: 50%; width: 10px; height: 10px; margin: -5px 0 0 -5px;
  border-radius: 50%;
}
.bound { position: absolute; top: -3px; bottom: -3px; border-left: 2px dashed var(--soft); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .65rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
tr:first-child th { border-top: 0; color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
td.pass { color: var(--ours); font-weight: 600; }
td.fail { color: var(--failed); font-weight: 600; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-weight: 600; }
details .scroll { margin: .75rem 0; }
@media (max-width: 42rem) {
  body { padding: 1.25rem .9rem 3rem; }
  .row { grid-template-columns: 1fr auto; gap: .1rem .75rem; padding: .35rem 0; }
  .row .track { grid-column: 1 / -1; grid-row: 2; }
}
)css";

}  // namespace levin::bench
