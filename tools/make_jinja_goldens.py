#!/usr/bin/env python3
"""Writes tests/data/text/jinja_cases.json: templates, their variables and what Python's Jinja2
makes of them, in the environment that transformers compiles chat templates in.

    pip install jinja2==3.1.6
    python3 tools/make_jinja_goldens.py

A case whose rendering raises is recorded with "fails": levin must refuse it as well.
"""
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/text"


class GenerationTag(jinja2.ext.Extension):
    """transformers' {% generation %}: renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()

# Variables of every case that has none of its own.
VARIABLES = {
    "s": "Hello, World",
    "empty": "",
    "padded": " \t two words \n",
    "uni": "Straße ΑΣ ΣΑΣ. İstanbul ǆ 世界 👩‍👧 é",
    "lines": "one\n  two\r\n\nthree\n",
    "quotes": "it's \"quoted\" \\ \t\u0000\u007f\u00a0\u200d",
    "inf_text": "inf",
    "n": 7, "neg": -7, "zero": 0, "big": 2**62, "f": 2.5, "tiny": 1e-7, "huge": 1e22, "third": 1 / 3,
    "yes": True, "no": False, "nothing": None,
    "xs": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "none_list": [], "mixed": [1, "a", None, 2.0, True, [1], {"k": "v"}],
    "d": {"b": 1, "a": [1, {"x": None}], "items": "shadow", "C": "see", "10": "ten"}, "none_dict": {},
    "users": [
        {"name": "Zoe", "age": 30, "tags": ["x"], "at": {"city": "Bonn"}},
        {"name": "adam", "age": 25, "tags": [], "at": {"city": "Oslo"}},
        {"name": "Bea", "age": 30, "tags": ["y", "z"]},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <b>&\"'"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None], "ü": "ü/\u2028"}}}]},
        {"role": "tool", "content": "42"},
    ],
}

EXPRESSIONS = """
1 + 2 * 3 ** 2 - 4 / 2
2 ** 3 ** 2
2 ** -1
-2 ** 2
7 // 2, -7 // 2, 7 // -2, 7.5 // 2, -7.5 // 2
7 % 3, -7 % 3, 7 % -3, 7.5 % 2, -7.5 % 2
1 / 3, 2 / 1, 10 / 4
0.1 + 0.2, 1e16, 1e15, 123456789012345678.0, 1e-4, 1e-5, 0.00001234, 1.0, 100.0, -0.0, 1e100, 5e-324
1_000, 0x1F, 0b101, 0o17, 1_0.5, 1e3, 1E-2
- - 3, +-3, not not 3, -f, +yes, -yes
-1|abs, (-1)|abs, -n|abs
1 + true, true + true, true * 3, 1 == true, 1.0 == 1, 0 == false
big + (big - 1), big - big, -big - big
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] ~ undefined_name ~ {'k': none}
'a' + 'b' * 3, 3 * 'ab', 'ab' * 0, 'ab' * -1
[1] + [2, 3], [0] * 3, (1,) + (2,)
1 < 2 < 3, 1 < 3 < 2, 1 == 1 != 2, 3 > 2 >= 2
'a' < 'b', 'a' < 'B', 'Z' < 'a', 'ab' < 'abc', [1, 2] < [1, 3], [1] < [1, 0], (1, 'a') < (1, 'b')
1 < 1.5, 2 > 1.5, big > 4611686018427387903.0, big == 4611686018427387904.0
1 in [1, 2], 3 not in [1, 2], 'ell' in s, 'x' in s, 'b' in d, 'zz' in d, 1 in [true], none in [none], '' in '', [1] in [[1]]
1 in undefined_name, 'x' in none_list
yes and 'x', no and 'x', yes or 'x', no or 'x', none or 0 or '' or 'last', 1 and 2 and 3, [] or {}
not yes, not none, not [] and true, not (yes and no)
'yes' if yes else 'no', 'yes' if no, ('a' if no else 'b' if no else 'c')
1 if yes else 2 if no else 3
[1, 2, 3][0], [1, 2, 3][-1], [1, 2, 3][5], 'abc'[1], 'abc'[-1], '世界'[1], xs[no]
xs[1:], xs[:1], xs[:-1], xs[::-1], xs[::2], xs[5:], xs[-2:], xs[-100:100], xs[2:0:-1], xs[:], xs[none:2]
'Hello'[1:3], 'Hello'[::-1], '世界 hello'[:2], '世界'[::-1], 'abcdef'[4:1:-2], 'abc'[5:], ''[::-1]
(1, 2, 3)[1:], range(5)[1:3]|list, range(10)[::3]|list
d.b, d['b'], d.missing, d['missing'], d.a[1].x, d.a[1]['x'], d['items'], d.get('b'), d.get('zz'), d.get('zz', 5), d['10']
users[0].name, users[0]['at'].city, users.0.name, users[-1].at
{'a': 1}.a, {'a': {'b': 2}}.a.b, {1: 'x'}[1], {1: 'x'}[1.0], {1: 'x'}[true], {none: 'n'}[none], {(1, 2): 't'}[(1, 2)]
none.foo, n.foo, s.foo, xs.foo, yes.foo, f['x'], none['x'], xs['x'], xs[none]
[1, 'a', none, 2.5, true, [], {}, (), (1,), (1, 2)]
{'a': 1, 'b': [1, 2], 'c': {'d': none}, 1: 2, none: 3, true: 4, 2.5: 5}
[undefined_name, 'x'], (undefined_name,)
[quotes], ["it's"], ['say "x"'], ["both ' and \\""], ['\\n\\r\\t\\\\'], [uni]
['\\x00\\x1f\\x7f\\xa0\\xad\\u200b\\u2028\\ue000\\ufeff\\U0001F600\\U000E0001']
'a' 'b' "c", 'it\\'s', "say \\"x\\"", 'tab\\there', 'nl\\nx', '\\u00e9\\x41\\101\\U0001F600', '\\q\\.', 'back\\\\slash'
'', "", '{{ x }}', '{% x %}', '%}', '}}'
true, True, false, False, none, None
1,
(1), (1,), (), ((1, 2), 3), 1, 2
"""

FILTERS = """
padded|trim, padded|trim|length, '..a.b..'|trim('.'), 'xyabyx'|trim('xy'), 5|trim, none|trim
s|upper, s|lower, 'hello world-foo (bar) [baz] <q> {z}'|title, 'hELLO wORLD'|capitalize, 'ONE two'|title, "it's o'clock"|title
uni|upper, uni|lower, uni|title, uni|capitalize, 'ß'|title, 'ǆ'|title, 'ǆ'|capitalize, 'ŉa'|upper, 'ﬁx'|upper, 'ΑΣ'|lower, 'ΑΣΑ'|lower, 'Σ'|lower, 'Α.Σ'|lower, 'ΑΣ.Α'|lower
uni.title(), 'ΑΣ ΑΣ'.title(), "they're bill's".title(), 'a1b c2d'.title(), uni.capitalize(), uni.upper(), uni.lower()
s|length, xs|length, d|length, uni|length, ''|count, undefined_name|length, (1, 2)|count, range(4)|length
xs|first, xs|last, none_list|first, none_list|last, 'abc'|first, 'abc'|last, d|first, undefined_name|first, undefined_name|last
xs|list, 'abc'|list, d|list, range(3)|list, (1, 2)|list, undefined_name|list
xs|join, xs|join(', '), words|join('-'), 'abc'|join('.'), mixed|join('|'), none_list|join(','), undefined_name|join(','), users|join(', ', attribute='name'), users[:2]|join(' ', attribute='at.city'), [1, none, true, 2.5, 'x']|join(0)
xs|sort, xs|sort(reverse=true), words|sort, words|sort(case_sensitive=true), words|sort(true, true)
users|sort(attribute='name')|map(attribute='name')|join(','), users|sort(attribute='age,name')|map(attribute='name')|join(','), users|sort(attribute='age', reverse=true)|map(attribute='name')|join(',')
words|unique|list, words|unique(case_sensitive=true)|list, [1, 1.0, true, 2]|unique|list, users|unique(attribute='age')|map(attribute='name')|list
xs|min, xs|max, words|min, words|max, none_list|min, users|max(attribute='age'), users|min(attribute='name')|tojson, words|max(case_sensitive=true), [2, 1.5, true]|min
xs|sum, users|sum(attribute='age'), [1.5, 2]|sum, none_list|sum, xs|sum(start=10), [[1], [2]]|sum(start=[])
xs|reverse|list, 'abc'|reverse, '世界a'|reverse, d|reverse|list, range(3)|reverse|list, xs|map('string')|reverse|list, undefined_name|reverse|list
users|map(attribute='name')|list, users|map(attribute='at.city', default='?')|list, users|map(attribute='tags.0')|list, words|map('upper')|list, words|map('replace', 'p', 'q')|list, xs|map('string')|join, words|map('length')|list, [' a ', 'b ']|map('trim')|list, ['1', 'x']|map('int', default=9)|list, undefined_name|map('upper')|list, [[1, 2], [3]]|map('first')|list, [[1, 2]]|map('join', '+')|list, [[1, 2]]|map(attribute=0)|list
xs|select('odd')|list, xs|reject('odd')|list, mixed|select|list, mixed|reject|list, mixed|select('string')|list, xs|select('>', 1)|list, xs|select('in', [1, 2])|list, words|select('equalto', 'fig')|list, mixed|select('none')|list, xs|select('divisibleby', 3)|list, undefined_name|select|list
users|selectattr('tags')|map(attribute='name')|list, users|rejectattr('tags')|map(attribute='name')|list, users|selectattr('age', 'equalto', 30)|map(attribute='name')|list, users|selectattr('at', 'defined')|list|length, users|selectattr('at', 'undefined')|map(attribute='name')|list, users|rejectattr('age', '==', 30)|list|length, messages|selectattr('role', 'in', ['user', 'tool'])|map(attribute='content')|list, users|selectattr('age', 'gt', 26)|list|length
'y' if users|selectattr('nothing') else 'n', 'y' if users|selectattr('nothing')|list else 'n', 'y' if d.items() else 'n', 'y' if none_dict.items() else 'n', 'y' if xs|map('string') else 'n'
d|items|list, none_dict|items|list, undefined_name|items|list, d|dictsort, d|dictsort(true), {'b': 1, 'a': 2}|dictsort(by='value'), {'b': 1, 'a': 2}|dictsort(reverse=true), {'b': 'X', 'a': 'y', 'C': 'w'}|dictsort(false, 'value')
undefined_name|default('x'), none|default('x'), none|default('x', true), ''|default('x'), ''|d('x', true), 0|default(5, boolean=true), undefined_name|default, d.missing|default('m'), d.missing|default(none), false|default(true), d.b|default('x')
s|replace('l', 'L'), s|replace('l', 'L', 1), s|replace('', '-'), 'aaa'|replace('aa', 'b'), 5|replace(5, 6), s|replace('zz', 'y'), s|replace('l', ''), uni|replace('世', 'X'), 'aaaa'|replace('a', 'b', 0)
lines|indent, lines|indent(2), lines|indent(2, true), lines|indent(2, true, true), lines|indent('> '), lines|indent(width=1, first=true), ''|indent, 'x'|indent, 'x\\n'|indent(2), '\\n\\nx'|indent(2), 'a\\n\\nb'|indent(2, blank=true), 'a\\x0bb\\x1cc\\u2028d'|indent(1)
'5'|int, '5.9'|int, 'x'|int, 'x'|int(7), ''|int, none|int, 3.99|int, -3.99|int, true|int, ' 12 '|int, '0x1f'|int(base=16), '1f'|int(0, 16), '101'|int(base=2), '1_000'|int, '-5'|int, '+5'|int, '--5'|int, '1e3'|int, 'inf'|int, 'nan'|int(3), [1]|int, '0b11'|int(base=2), '5 5'|int
'5'|float, '5.5'|float, 'x'|float, 'x'|float(1.5), none|float, 3|float, true|float, ' 1e3 '|float, 'inf'|float, '-inf'|float, 'nan'|float, '1_0.5'|float, '.5'|float, '5.'|float, '0x1'|float, ''|float
-5|abs, (-2.5)|abs, true|abs, 0|abs
2.5|round, 3.5|round, 2.675|round(2), -2.5|round, 2.4|round, 7|round, 1.25|round(1), 1.35|round(1), 42.55|round(1, 'floor'), 42.51|round(1, 'ceil'), 42.55|round(method='floor'), 1234.5678|round(2), 1e20|round, 0.5|round, 1.5|round, 7|round(2), true|round, 1e-9|round(3), (-0.4)|round
42.7|round|int, (7 / 2)|round(1)|string
5|string, none|string, true|string, xs|string, d|string, undefined_name|string, 1.0|string
s|safe, '<b>'|safe, 5|safe
nothing|string|length, [none]|string|length
"""

TOJSON = """
none|tojson, true|tojson, 1|tojson, 1.5|tojson, 1.0|tojson, 1e16|tojson, 's'|tojson, []|tojson, {}|tojson, ()|tojson
d|tojson, mixed|tojson, users|tojson, messages[2].tool_calls[0].function.arguments|tojson, quotes|tojson, uni|tojson, '<>&\\''|tojson, '\\u2028\\u2029/'|tojson
d|tojson(indent=2), mixed|tojson(indent=4), []|tojson(indent=2), {}|tojson(indent=2), [[], {}]|tojson(indent=2), [1]|tojson(indent=0), d|tojson(indent='\\t'), [1, [2]]|tojson(indent=none), [1]|tojson(indent=true)
uni|tojson(ensure_ascii=true), '\\U0001F600\\x7f\\xe9'|tojson(true), d|tojson(separators=(',', ':')), d|tojson(separators=[', ', ' = ']), d|tojson(sort_keys=true), {'b': {'z': 1, 'y': 2}, 'a': 3}|tojson(sort_keys=true), [1, 2]|tojson(indent=1, separators=('; ', ':'))
{1: 2, none: 3, true: 4, 2.5: 5, 'x': 6}|tojson, {1: {2: 3}}|tojson(indent=1), [('a', 1)]|tojson, d.items()|list|tojson, [huge, tiny, third, big, neg]|tojson
"""

METHODS = """
padded.strip(), padded.lstrip(), padded.rstrip(), 'xxaxx'.strip('x'), 'abc'.lstrip('ab'), 'abc'.rstrip('bc'), '\\x1c\\u3000 a \\x85'.strip(), 'é a é'.strip('é '), 'abc'.strip('')
s.split(), s.split(','), s.split(', '), 'a,b,,c'.split(','), 'a b  c'.split(), ' a b '.split(), 'a,b,c'.split(',', 1), 'a b c d'.split(none, 2), 'a b c d'.split(maxsplit=1), ''.split(), ''.split(','), ' '.split(), 'a</think>b</think>c'.split('</think>')[-1], 'a b c'.split(' ', 0), ' a  b '.split(none, 0), ' a  b '.split(none, 1)
'a,b,c'.rsplit(',', 1), 'a b c d'.rsplit(none, 2), ' a b  c '.rsplit(), 'a b c'.rsplit(), 'abc'.rsplit(','), 'aXXbXXc'.rsplit('XX', 1), ' a  b '.rsplit(none, 1), 'aaa'.rsplit('aa')
lines.splitlines(), 'a\\n\\nb'.splitlines(), 'a\\r\\nb\\rc\\x0bd\\x0ce\\x1cf\\x85g\\u2028h'.splitlines(), lines.splitlines(true), ''.splitlines(), '\\n'.splitlines(), 'a'.splitlines()
s.startswith('Hello'), s.startswith('World'), s.endswith('World'), s.startswith(('a', 'H')), s.startswith('World', 7), s.startswith(''), s.endswith('Hello', 0, 5), ''.startswith('a'), s.startswith('H', 100), s.startswith('', 100), s.endswith('d', -1), s.startswith('llo', 2, 4)
s.upper(), s.lower(), 'one two'.title(), 'oNE'.capitalize(), s.replace('l', 'L'), s.replace('l', 'L', 2), s.replace('', '.'), 'aaa'.replace('a', '', 2)
s.find('o'), s.find('o', 5), s.find('zz'), s.rfind('o'), '世界世'.find('世', 1), '世界世'.rfind('世'), s.find(''), s.rfind(''), s.find('o', 100), s.find('', 12), s.find('', 13), s.find('World', 0, 9), s.find('o', -4), s.index('W'), s.rindex('l'), s.count('l'), s.count(''), s.count('l', 5), 'aaaa'.count('aa'), 'aaa'.count('a', 1, 2)
','.join(['a', 'b']), ''.join([]), '-'.join('abc'), ', '.join(words), ' '.join(d), '+'.join(xs|map('string'))
'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), 'x'.removeprefix('y'), 'aa'.removesuffix('')
d.keys()|list, d.values()|list, d.items()|list, d.keys()|length, d.keys(), d.values(), {'a': 1}.items(), none_dict.keys(), ('a' in d.keys()), (('b', 1) in d.items())
[1, 2, 1].count(1), [1, 2, 1].index(2), (1, 2).count(2), (1, 2).index(2)
range(5)|list, range(2, 5)|list, range(5, 0, -2)|list, range(0)|list, range(3)|length, range(5)[2], range(3)|tojson|default('x') if no else 'skip', 2 in range(5), range(1, 3)|sum
dict(a=1, b=2), dict({'a': 1}, b=2), dict(), namespace(a=1).a, namespace({'x': 2}).x, namespace(a=1)['a'], namespace(a=1).b is defined
'a'.join is callable, range is callable, d.items is callable, s is callable, namespace is callable
"""

TESTS = """
undefined_name is defined, undefined_name is undefined, n is defined, d.zz is defined, d.b is defined, none is defined, d.a[9] is defined
none is none, nothing is none, undefined_name is none, 0 is none
s is string, n is string, none is string, undefined_name is string
d is mapping, xs is mapping, s is mapping, none is mapping
xs is sequence, s is sequence, d is sequence, (1,) is sequence, n is sequence, none is sequence, range(2) is sequence, xs|map('string') is sequence, d.items() is sequence, undefined_name is sequence
xs is iterable, s is iterable, d is iterable, n is iterable, none is iterable, xs|map('string') is iterable, undefined_name is iterable, d.keys() is iterable
n is number, f is number, yes is number, s is number, none is number
n is integer, f is integer, yes is integer, f is float, n is float, yes is float
yes is boolean, n is boolean, none is boolean, yes is true, yes is false, no is false, 1 is true, 0 is false, 'x' is true
3 is odd, 4 is odd, 4 is even, -3 is odd, 3.0 is odd, 9 is divisibleby 3, 9 is divisibleby(4), true is odd
1 is eq 1, 1 is equalto 2, 1 is ne 2, 2 is gt 1, 2 is greaterthan 3, 2 is ge 2, 1 is lt 2, 1 is lessthan 1, 1 is le 1, 'a' is eq 'a', 1 is sameas 1 if no else 'skip'
1 is in [1, 2], 'b' is in d, 5 is in xs, 'x' is not in 'xyz', 1 is not in [2]
none is sameas none, yes is sameas true, 1 is sameas true, no is sameas none
n is not none, undefined_name is not defined, not n is none, n is not defined or yes, n is defined and s is string
'z' if n is defined else 'w', 'z' if n is not number else 'w', n is defined == true
n is divisibleby 7 and s is string, [1 is odd, 2 is odd]
"""

# One rendering each; whole templates.
TEMPLATES = {
    "text only": "Hello\n",
    "empty": "",
    "one line end": "\n",
    "two line ends": "a\n\n",
    "carriage returns": "a\r\nb\rc\r\n{{ 'x\r\ny' }}\r\n",
    "output keeps line end": "{{ n }}\n{{ n }}\nend",
    "tag eats line end": "{% if yes %}\na\n{% endif %}\nb\n",
    "tag eats one line end only": "{% if yes %}\n\na\n{% endif %}\n\nb\n",
    "lstrip": "  {% if yes %}\n    x\n  {% endif %}\n  y",
    "lstrip not before output": "  {{ n }}\n  {% set a = 1 %}\n  {{ a }}",
    "lstrip after text": "text {% if yes %} x {% endif %} y",
    "lstrip with tab": "\t{% if yes %}x{% endif %}\n\t {%- if yes %}y{% endif %}",
    "plus keeps space": "  {%+ if yes %}\n  x\n  {%+ endif %}\n",
    "plus keeps line end": "{% if yes +%}\nx{% endif +%}\ny",
    "minus": "a  \n\n {%- if yes -%} \n\n b \n {%- endif -%} \n c",
    "minus output": "a \n {{- n -}} \n b",
    "minus one side": "a {{- n }} b {{ n -}} c",
    "minus strips unicode space": "a\u3000\u00a0{{- n -}}\u2003\x1cb",
    "comments": "a{# x #}b\n{# y #}\nc {#- z -#} d\n  {# lone #}\n{#+ p +#}\ne{##}f{#--#}g",
    "comment with tags": "{# {% if %} {{ x }} #}x",
    "raw": "{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  z",
    "raw line ends": "a\n{% raw %}\n  {{ x }}\n{% endraw %}\nb",
    "raw lstrip": "  {% raw %} x\n  {% endraw %} y\n  {%+ raw %} z {% endraw +%}\nend",
    "braces in text": "{ } {x} }} %} {a{ { {",
    "nested braces": "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}",
    "if elif else": "{% for i in range(4) %}{% if i == 0 %}a{% elif i == 1 %}b{% elif i == 2 %}c{% else %}d{% endif %}{% endfor %}",
    "if colon": "{% if yes: %}x{% endif %}",
    "if tuple": "{% if no, no %}x{% endif %}",
    "set scopes": "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = a + 10 %}{{ a }}{% endfor %}{{ a }}{% if yes %}{% set a = 5 %}{% endif %}{{ a }}",
    "set in loop does not leak": "{% for i in [1] %}{% set q = 1 %}{% endfor %}[{{ q }}]",
    "set tuple": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set e = 1, 2 %}{{ e }}{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}",
    "set swap": "{% set a, b = 1, 2 %}{% set a, b = b, a %}{{ a }}{{ b }}",
    "set shadows variable": "{{ n }}{% set n = 8 %}{{ n }}",
    "set block": "{% set x %}\n  body {{ n }}\n{% endset %}[{{ x }}]",
    "set block filter": "{% set x | trim | upper %}  body {{ n }} {% endset %}[{{ x }}]{% set y | replace('a', 'b') %}aaa{% endset %}{{ y }}",
    "set block scope": "{% set a = 1 %}{% set x %}{% set a = 2 %}{{ a }}{% endset %}{{ x }}{{ a }}",
    "set block namespace": "{% set ns = namespace() %}{% set ns.t %}hi{% endset %}{{ ns.t }}",
    "namespace": "{% set ns = namespace(c=0, l=[]) %}{% for i in xs %}{% set ns.c = ns.c + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.c }} {{ ns.l }} {{ ns.missing is defined }} {{ ns['c'] }}",
    "namespace tuple target": "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
    "for basics": "{% for x in xs %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.depth0 }}:{{ x }}\n{% endfor %}",
    "for else": "{% for x in [] %}x{% else %}none{% endfor %}{% for x in xs if x > 9 %}x{% else %}none{% endfor %}{% for x in xs %}{{ x }}{% else %}none{% endfor %}",
    "for filter": "{% for x in xs if x != 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "for filter sees body": "{% set ns = namespace(stop=9) %}{% for x in [1, 2, 3, 4] if x < ns.stop %}{{ x }}{% set ns.stop = 3 %}{% endfor %}",
    "for filter with last": "{% set ns = namespace(stop=9) %}{% for x in [1, 2, 3, 4] if x < ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = 3 %}{% endfor %}",
    "for previtem nextitem": "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "for unpack": "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for (a, b) in [[1, 2]] %}{{ a + b }}{% endfor %}",
    "for over dict": "{% for k in d %}{{ k }},{% endfor %}{% for k in d.keys() %}{{ k }},{% endfor %}{% for v in d.values() %}{{ v }},{% endfor %}",
    "for over text": "{% for c in '世a界' %}{{ c }}.{% endfor %}",
    "for over undefined": "{% for x in undefined_name %}x{% else %}e{% endfor %}",
    "for over tuple": "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "for over generator": "{% for x in xs|map('string') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "generator is read once": "{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}{% set h = xs|select %}{% for x in h %}{{ x }}{% break %}{% endfor %}{{ h|list }}",
    "for nested": "{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{{ a }}{{ b }} {% endfor %}{{ loop.index }};{% endfor %}",
    "for outer loop": "{% for a in [1, 2] %}{% set outer = loop %}{% for b in 'xy' %}{{ outer.index }}{{ loop.index }}{{ outer.last }} {% endfor %}{% endfor %}",
    "for in loop iterable": "{% for a in [1, 2] %}{% for b in range(loop.index) %}{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "for break continue": "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "break inner only": "{% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{{ i }}{% endfor %}",
    "break with else": "{% for i in [1] %}{% break %}{% else %}e{% endfor %}",
    "continue with else": "{% for i in [1, 2] %}{% continue %}{% else %}e{% endfor %}{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{% else %}e{% endfor %}",
    "loop cycle": "{% for i in range(5) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
    "loop changed": "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}",
    "loop variable after loop": "{% for i in [1] %}{% endfor %}{{ loop is defined }}{{ i is defined }}",
    "loop target shadows": "{% set x = 0 %}{% for x in [1, 2] %}{{ x }}{% endfor %}{{ x }}",
    "messages": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}\n{% endfor %}",
    "messages slice": "{% for m in messages[1:] %}{{ m['role'] }}{{ loop.index0 }}{% if not loop.last and messages[loop.index0 + 2].role == 'tool' %}!{% endif %} {% endfor %}",
    "macro": "{% macro f(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='y') }}{{ f(a=5, b=6) }}{{ f() }}",
    "macro default sees parameter": "{% macro f(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}",
    "macro scope": "{% set g = 1 %}{% macro f() %}{{ g }}{% set g = 5 %}{{ g }}{% endmacro %}{{ f() }}{{ g }}{% set g = 2 %}{{ f() }}",
    "macro does not see caller": "{% macro f() %}[{{ i is defined }}]{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}",
    "macro in loop": "{% for i in [1, 2] %}{% macro f(x) %}{{ i }}{{ x }} {% endmacro %}{{ f('a') }}{% endfor %}",
    "macro recursion": "{% macro tree(t) %}{{ t.v }}{% if t.c %}({% for x in t.c %}{{ tree(x) }}{% endfor %}){% endif %}{% endmacro %}{{ tree({'v': 1, 'c': [{'v': 2}, {'v': 3, 'c': [{'v': 4}]}]}) }}",
    "macro result is text": "{% macro f(x) %} {{ x }} {% endmacro %}{{ f(1)|trim|length }}{{ (f(2) | trim) ~ '!' }}{% set r = f(3) %}[{{ r }}]{{ f(1) is string }}",
    "macro whitespace": "{%- macro f(x) %}\n  {{ x }}\n{%- endmacro %}\n[{{ f(1) }}]",
    "macro uses macro": "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}{{ a(x) }}{{ a(x ~ 'y') }}{% endmacro %}{{ b('q') }}",
    "macro late variable": "{% macro f() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ f() }}{% set v = 2 %}{{ f() }}",
    "macro loop variable": "{% macro f(xs) %}{% for x in xs %}{{ loop.index }}{{ x }}{% endfor %}{% endmacro %}{{ f('ab') }}",
    "macro undefined argument": "{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}{{ f(undefined_name) }}{{ f(none) }}",
    "macro trailing comma": "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(1, 2,) }}{{ f(1, b=2,) }}",
    "macro as value": "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set g = f %}{{ g(1) }}{{ f is callable }}{{ f is defined }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role }}{% set z = 1 %}{% endgeneration %}{{ z is defined }}\n{% endfor %}",
    "generation line ends": "a\n{% generation %}\nb\n{% endgeneration %}\nc",
    "undefined text": "[{{ undefined_name }}][{{ d.nope }}][{{ xs[9] }}][{{ undefined_name ~ 'x' }}]",
    "undefined truth": "{% if undefined_name %}y{% else %}n{% endif %}{% if not d.nope %}y{% endif %}{{ undefined_name == undefined_name }}{{ undefined_name == none }}{{ undefined_name != d.nope }}",
    "inline if without else": "[{{ 'x' if no }}]{% set v = 'x' if no %}{{ v is defined }}",
    "inline if is undefined": "{{ ('x' if no) is defined }}{{ ('x' if no) | default('d') }}",
    "string methods chain": "{{ '  A</think>B '.split('</think>')[-1].strip().lower() }}",
    "tojson in text": "{{ messages[2].tool_calls[0].function.arguments | tojson }}\n{{ {'a': 'ü'} | tojson }}",
    "multi line expression": "{{ 'a'\n  ~ 'b'\n  ~ (n\n +1) }}\n{%- set x =\n  {\n 'k': 1,\n } %}{{ x.k }}",
    "trailing commas": "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1,) }}{{ range(3,)|list }}",
    "dict order": "{{ {'z': 1, 'a': 2, 'm': 3} }}{{ {'a': 1, 'b': 2, 'a': 3} }}",
    "filter precedence": "{{ 'a' ~ 'b' | upper }}{{ ('a' ~ 'b') | upper }}{{ 1 + 2 | string | length }}{{ -5 | abs }}{{ not 0 | abs }}",
    "test precedence": "{{ not n is string }}{{ n + 1 is odd }}{{ (n + 1) is odd }}{{ n is odd and n is number }}{{ 'a' ~ n is string }}",
    "comparison of concat": "{{ 'a' ~ 'b' == 'ab' }}{{ 1 ~ 2 == '12' }}{{ (1 + 1) ~ 2 }}{{ 1 ~ 2 + 3 if no else 'skip' }}",
    "names like keywords": "{% set iff = 1 %}{% set orx = 2 %}{% set notx = 3 %}{% set inx = 4 %}{{ iff }}{{ orx }}{{ notx }}{{ inx }}{{ {'is': 1}['is'] }}{{ {'in': 2}.get('in') }}",
    "attribute named like method": "{{ d['items'] }}{{ d.get('items') }}{% for k in {'items': 1}.items() %}{{ k }}{% endfor %}",
    "long elif": "{% if n == 1 %}1{% elif n == 2 %}2{% elif n == 3 %}3{% elif n == 4 %}4{% elif n == 7 %}seven{% endif %}",
    "value of text with braces": "{{ '{{ n }}' }}{{ \"{% if %}\" }}",
    "safe and unicode": "{{ uni }}{{ uni | upper }}{{ uni | list | length }}",
    "list of lists": "{{ [[1, 2], [3]] | map('join', '-') | join('|') }}",
    "output of tuple": "{{ 1, 2 }}{{ () }}{{ (1) }}",
    "in with strings": "{{ '<think>' in 'a<think>b' and '</think>' not in 'a' }}",
}

FAILING = {
    "raise_exception": "{{ raise_exception('no ' ~ n) }}",
    "undefined attribute": "{{ undefined_name.x }}",
    "undefined item": "{{ undefined_name['x'] }}",
    "undefined nested": "{{ d.nope.deeper }}",
    "undefined call": "{{ undefined_name() }}",
    "undefined plus": "{{ undefined_name + 1 }}",
    "undefined less": "{{ undefined_name < 1 }}",
    "undefined tojson": "{{ undefined_name | tojson }}",
    "undefined int": "{{ undefined_name | int }}",
    "undefined slice": "{{ undefined_name[1:] }}",
    "none iteration": "{% for x in none %}{% endfor %}",
    "int iteration": "{% for x in 5 %}{% endfor %}",
    "none length": "{{ none | length }}",
    "int length": "{{ 5 | length }}",
    "generator length": "{{ xs | select | length }}",
    "generator last": "{{ xs | select | last }}",
    "str plus int": "{{ 'a' + 1 }}",
    "list plus tuple": "{{ [1] + (1,) }}",
    "str minus": "{{ 'a' - 'b' }}",
    "division by zero": "{{ 1 / 0 }}",
    "floor division by zero": "{{ 1 // 0 }}",
    "modulo zero": "{{ 1 % 0 }}",
    "order of kinds": "{{ 'a' < 1 }}",
    "order of none": "{{ none < 1 }}",
    "order of dicts": "{{ {} < {} }}",
    "sort kinds": "{{ [1, 'a'] | sort }}",
    "in number": "{{ 1 in 5 }}",
    "in none": "{{ 1 in none }}",
    "number in text": "{{ 1 in 'abc' }}",
    "unpack few": "{% for a, b in [[1]] %}{% endfor %}",
    "unpack many": "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "unpack set": "{% set a, b = 1, 2, 3 %}",
    "call a string": "{{ s() }}",
    "call a dict": "{{ d() }}",
    "unhashable key": "{{ {[1]: 2} }}",
    "slice step zero": "{{ xs[::0] }}",
    "slice with text": "{{ xs['a':] }}",
    "slice of none": "{{ nothing[1:] }}",
    "slice of dict": "{{ d[1:] }}",
    "macro too many": "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "macro unknown keyword": "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
    "macro argument twice": "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
    "filter unknown keyword": "{{ s | trim(foo=1) }}",
    "filter too many": "{{ s | upper(1) }}",
    "namespace of dict": "{% set d.x = 1 %}",
    "namespace underscore": "{{ [].__class__.__mro__ }}",
    "split empty separator": "{{ s.split('') }}",
    "index missing": "{{ s.index('zz') }}",
    "list index missing": "{{ xs.index(9) }}",
    "join of numbers": "{{ ','.join(xs) }}",
    "append": "{{ xs.append(1) }}",
    "update": "{{ d.update({'x': 1}) }}",
    "range zero step": "{{ range(1, 2, 0) }}",
    "range too long": "{{ range(1000000) }}",
    "cycle nothing": "{% for x in xs %}{{ loop.cycle() }}{% endfor %}",
    "items of list": "{{ xs | items | list }}",
    "dictsort of list": "{{ xs | dictsort }}",
    "tojson of generator": "{{ xs | select | tojson }}",
    "tojson of items": "{{ d.items() | tojson }}",
    "tojson of range": "{{ range(2) | tojson }}",
    "int of infinity": "{{ inf_text | float | int }}",
    "round of text": "{{ s | round }}",
    "abs of text": "{{ s | abs }}",
    "indent of number": "{{ 5 | indent }}",
    "map nothing": "{{ xs | map | list }}",
    "map unknown": "{{ xs | map('nope') | list }}",
    "selectattr nothing": "{{ users | selectattr | list }}",
    "select unknown": "{{ xs | select('nope') | list }}",
    "unclosed output": "{{ n",
    "unclosed tag": "{% if n",
    "unclosed if": "{% if n %}x",
    "unclosed for": "{% for x in xs %}x",
    "unclosed macro": "{% macro f() %}x",
    "unclosed set": "{% set x %}x",
    "unclosed comment": "{# x",
    "unclosed raw": "{% raw %}x",
    "unclosed string": "{{ 'abc }}",
    "unclosed bracket": "{{ [1, 2 }}",
    "wrong bracket": "{{ (1] }}",
    "stray end": "x{% endif %}",
    "stray else": "{% else %}",
    "wrong end": "{% if n %}{% endfor %}",
    "unknown tag": "{% frobnicate %}",
    "do tag": "{% do xs %}",
    "break outside": "{% if n %}{% break %}{% endif %}",
    "empty output": "{{ }}",
    "empty tag": "{% %}",
    "missing operand": "{{ 1 + }}",
    "two operators": "{{ 1 * / 2 }}",
    "two values": "{{ 1 2 }}",
    "bad character": "{{ 1 ! 2 }}",
    "unknown filter": "{{ s | nope }}",
    "unknown test": "{{ s is nope }}",
    "chained tests": "{{ 1 is odd is true }}",
    "assign to constant": "{% set true = 1 %}",
    "assign to expression": "{% set 1 + 1 = 2 %}",
    "assign to loop": "{% for x in xs %}{% set loop = 1 %}{% endfor %}",
    "loop as target": "{% for loop in xs %}{% endfor %}",
    "positional behind named": "{{ range(start=1, 2) }}",
    "default order": "{% macro f(a=1, b) %}{% endmacro %}",
    "missing in": "{% for x xs %}{% endfor %}",
    "bad escape": "{{ '\\x4' }}",
    "dict without value": "{{ {'a'} }}",
    "attribute number": "{{ d.1.5x }}",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "  Weather at a place. ",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": " Name of the city "},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": ["integer", "null"], "minimum": 1, "nested": {"a": [1, 2.5, None, True]}}},
            "required": ["city"], "additionalProperties": False},
        "strict": True}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CONVERSATIONS = {
    "user": {"messages": [{"role": "user", "content": "Hello"}]},
    "no thinking": {"messages": [{"role": "user", "content": "Hello"}], "enable_thinking": False},
    "system": {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi 世界"}]},
    "history": {"messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "add them"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n4"},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "content": "6", "reasoning_content": "last one"}]},
    "history kept": {"truncate_history_thinking": False, "messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "add them"},
        {"role": "user", "content": "2+2?"}]},
    "tools": {"tools": TOOLS, "messages": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather in Oslo and Bonn?"},
        {"role": "assistant", "content": "Let me look.", "reasoning_content": "two calls", "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2, "flag": True, "opt": None}}},
            {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bonn", "where": {"lat": 50.7, "tags": ["a", "ü"]}}}}]},
        {"role": "tool", "content": "3 C"},
        {"role": "tool", "content": "{\"temp\": 7}"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "Thanks"}]},
    "tool call without content": {"tools": TOOLS, "messages": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "now", "arguments": {}}}]},
        {"role": "tool", "content": "12:00"}]},
    "effort": {"medium_effort": True, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]},
    "bad role": {"messages": [{"role": "user", "content": "x"}, {"role": "narrator", "content": "y"}]},
    "no generation prompt": {"add_generation_prompt": False, "messages": [{"role": "user", "content": "x"}]},
}


def run(template, variables):
    """The rendering, or None when it raises."""
    try:
        return ENV.from_string(template).render(**variables)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, ZeroDivisionError,
            OverflowError, LookupError, AttributeError, SyntaxError) as error:
        return None if error is not None else ""


def split_top_level(line):
    """The expressions of a line, which are separated by commas outside brackets and quotes."""
    parts, depth, quote, start, i = [], 0, None, 0, 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = None
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(line[start:i].strip())
            start = i + 1
        i += 1
    parts.append(line[start:].strip())
    return [p for p in parts if p]


def main():
    cases = []

    def add(name, template, variables=None, must_fail=False):
        expected = run(template, variables if variables is not None else VARIABLES)
        if (expected is None) != must_fail:
            print(f"{name}: {template!r} {'fails' if expected is None else 'renders'}")
            return
        case = {"name": name, "template": template}
        if variables is not None:
            case["variables"] = variables
        case.update({"fails": True} if must_fail else {"expected": expected})
        cases.append(case)

    for group, text in (("expression", EXPRESSIONS), ("filter", FILTERS), ("tojson", TOJSON),
                        ("method", METHODS), ("test", TESTS)):
        for line in text.strip().splitlines():
            for expression in split_top_level(line):
                add(f"{group} {expression}", "{{ " + expression + " }}")
    for name, template in TEMPLATES.items():
        add(name, template)
    for name, template in FAILING.items():
        add("fails: " + name, template, must_fail=True)

    conversations = []
    for path in sorted((DATA / "templates").glob("*.jinja")):
        for name, variables in CONVERSATIONS.items():
            variables = {"tools": None, "add_generation_prompt": True, **variables}
            expected = run(path.read_text(), variables)
            case = {"name": f"{path.stem}: {name}", "file": path.name, "variables": variables}
            case.update({"fails": True} if expected is None else {"expected": expected})
            conversations.append(case)

    document = {"variables": VARIABLES, "cases": cases, "conversations": conversations}
    out = DATA / "jinja_cases.json"
    out.write_text(json.dumps(document, ensure_ascii=True, indent=1) + "\n")
    print(f"{out}: {len(cases)} cases, {len(conversations)} conversations, jinja2 {jinja2.__version__}")


if __name__ == "__main__":
    main()
