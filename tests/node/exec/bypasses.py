"""What an attacker tries who wants `rm` to run where only `echo *` is allowed. Each line is shell text or an argv."""

from . import shell_bypasses

VICTIM = "victim"
"""The file each attempt tries to remove, in the folder it runs in."""

REPO = "repo"
FALSE_FRIENDS = (
    "env",
    "sh",
    "bash",
    "xargs",
    "nice",
    "nohup",
    "timeout",
    "find",
    "busybox",
    "stdbuf",
    "time",
    "echo",
    "command",
)
"""Files in a folder of that name that bear the names of others, and remove the file."""

TEXTS = r"""
rm victim
/bin/rm victim
/usr/bin/rm -f victim
../../../../../../bin/rm victim
./rm victim
echo x; rm victim
echo x;rm victim
echo x ;; rm victim
echo x && rm victim
echo x || rm victim
false || rm victim
echo x & rm victim
echo x&rm victim
echo x | rm victim
echo x|rm victim
echo x |& rm victim
echo victim | xargs rm
echo victim | xargs -n1 rm
echo victim | xargs -I{} rm {}
echo victim | xargs -I X sh -c "rm X"
echo victim | xargs -0 rm
echo victim | xargs -d ' ' rm
echo victim | xargs --max-args=1 rm
echo victim | xargs -i rm {}
echo rm victim | xargs -I{} {}
echo rm victim | sh
echo rm victim | bash
echo rm victim | dash
echo rm victim | sh -s
echo rm victim | sh -
echo rm victim | sh /dev/stdin
echo rm victim | bash -x
echo 'rm victim' | /bin/sh
echo "rm victim" | env sh
echo rm victim | nohup sh
echo rm victim | source /dev/stdin
echo rm victim | . /dev/stdin
echo rm victim | xargs -I{} sh -c {}
echo rm victim | tee /dev/null | sh
echo $(rm victim)
echo "$(rm victim)"
echo "a $(rm victim) b"
echo "$(echo $(rm victim))"
echo $(echo `rm victim`)
echo `rm victim`
echo "`rm victim`"
echo `echo \`rm victim\``
echo ${x:-$(rm victim)}
echo "${x:-`rm victim`}"
echo ${x:=$(rm victim)}
echo ${x:+$(rm victim)} ${HOME:+$(rm victim)}
echo ${x/$(rm victim)/}
echo $(( $(rm victim) + 1 ))
echo $((a[$(rm victim)]))
echo $[ $(rm victim) ]
echo <(rm victim)
echo >(rm victim)
echo x > >(rm victim)
echo x >| $(rm victim)
echo < <(rm victim)
echo <<< $(rm victim)
echo <<EOF `rm victim`
$(echo rm) victim
$(echo rm victim)
`echo rm` victim
"$(echo rm)" victim
r\m victim
\rm victim
'rm' victim
"rm" victim
r''m victim
r""m victim
"r"'m' victim
r$()m victim
r$(echo)m victim
r`echo`m victim
r${x}m victim
r$@m victim
r$*m victim
$'rm' victim
$'\x72\x6d' victim
$'\162\155' victim
$"rm" victim
/bin/r? victim
/bin/r[m] victim
/???/rm victim
/bin/{rm,victim}
{rm,victim}
{rm,-f,victim}
{ rm victim; }
(rm victim)
( rm victim )
((rm victim))
! rm victim
echo x; { rm victim; }
echo x; (rm victim)
if true; then rm victim; fi
if rm victim; then echo x; fi
while rm victim; do echo x; done
until rm victim; do break; done
for f in victim; do rm $f; done
case x in x) rm victim;; esac
select x in y; do rm victim; done
function f { rm victim; }; f
f() { rm victim; }; f
f() (rm victim); f
echo() { rm victim; }; echo x
echo () { rm victim ; } ; echo x
function echo { rm victim; }; echo x
alias echo=rm; echo victim
shopt -s expand_aliases; alias echo='rm'; echo victim
hash -p /bin/rm echo; echo victim
enable -n echo; echo x
eval rm victim
eval "rm victim"
eval $(echo rm victim)
eval 'r''m victim'
echo x; eval rm victim
exec rm victim
exec -a echo rm victim
command rm victim
command -p rm victim
builtin command rm victim
builtin eval rm victim
command eval rm victim
trap 'rm victim' EXIT
trap 'rm victim' 0; echo x
trap 'rm victim' DEBUG; echo x
time rm victim
coproc rm victim
nohup rm victim
nice rm victim
nice -n 5 rm victim
nice -5 rm victim
ionice -c3 rm victim
timeout 5 rm victim
timeout -s KILL 5 rm victim
timeout --signal=9 5s rm victim
stdbuf -o0 rm victim
setsid rm victim
setsid -f rm victim
env rm victim
env -i rm victim
env -u HOME rm victim
env - rm victim
env LANG=C rm victim
env A=1 rm victim
env -S 'rm victim'
env -S'rm victim'
env --split-string='rm victim'
env -vS 'rm victim'
env -C . rm victim
env env env rm victim
env PATH=. echo x
/usr/bin/env rm victim
sudo rm victim
sudo -n rm victim
sudo -u root rm victim
doas rm victim
su -c 'rm victim'
su root -c 'rm victim'
runuser -u root -- rm victim
pkexec rm victim
sh -c 'rm victim'
sh -c "rm victim"
sh -c rm\ victim
sh -ec 'rm victim'
sh -c -- 'rm victim'
sh -- -c 'rm victim'
sh -c 'echo x; rm victim'
sh -c 'echo x
rm victim'
sh -c 'eval "$0"' 'rm victim'
sh -c '"$@"' _ rm victim
sh -c '$0 victim' rm
sh -c "$(echo rm victim)"
sh -c 'sh -c "rm victim"'
sh -c "sh -c 'sh -c \"rm victim\"'"
bash -c 'rm victim'
bash -lc 'rm victim'
bash -ic 'rm victim'
bash --norc -c 'rm victim'
bash -O extglob -c 'rm victim'
bash -o errexit -c 'rm victim'
bash --rcfile x -c 'rm victim'
bash -c 'echo ${x@P}; rm victim'
bash -c $'rm\tvictim'
dash -c 'rm victim'
zsh -c 'rm victim'
ksh -c 'rm victim'
busybox rm victim
busybox sh -c 'rm victim'
toybox rm victim
find . -name victim -delete
find . -name victim -exec rm {} +
find . -name victim -exec rm {} \;
find . -name victim -exec sh -c 'rm "$1"' _ {} \;
find . -execdir rm {} ';'
find . -ok rm {} ';'
find victim -exec env rm {} +
find . -name victim | xargs rm
find . -name victim -fprint victim
perl -e 'unlink "victim"'
python3 -c 'import os; os.remove("victim")'
awk 'BEGIN { system("rm victim") }'
awk 'BEGIN { "rm victim" | getline }'
sed -n '1e rm victim' /etc/passwd
ed -s <<< '!rm victim'
vim -c '!rm victim' -c q
make -f - <<< 'x:; rm victim'
tar cf /dev/null /etc/hosts --checkpoint=1 --checkpoint-action=exec='rm victim'
git -c alias.x='!rm victim' x
watch -n1 rm victim
script -c 'rm victim' /dev/null
flock /tmp rm victim
unshare rm victim
chroot / rm victim
taskset 1 rm victim
parallel rm ::: victim
strace rm victim
xvfb-run rm victim
ssh localhost rm victim
unlink victim
mv victim gone
cp /dev/null victim
truncate -s0 victim
dd if=/dev/null of=victim
install /dev/null victim
ln -sf /dev/null victim
tee victim
shred -u victim
> victim
>victim
: > victim
echo x > victim
echo x >victim
echo >victim x
echo x 1> victim
echo x 2> victim
echo x &> victim
echo x >& victim
echo x >| victim
echo x >> victim
echo x <> victim
echo x > ./victim
echo x > "$PWD/victim"
echo x > v?ctim
PATH=.:$PATH rm victim
PATH=. echo x
X=rm; $X victim
X=rm $X victim
x=rm;$x victim
a=r b=m; $a$b victim
IFS=,; x=rm,victim; $x
export X=rm; $X victim
read x < /dev/null; rm victim
set -- rm victim; "$@"
set -- rm victim; $1 $2
printf -v x rm; $x victim
printf -v 'a[$(rm victim)]' x
test -v 'a[$(rm victim)]'
[ -v 'a[$(rm victim)]' ]
let 'a[$(rm victim)]=1'
unset 'a[$(rm victim)]'
declare 'a[$(rm victim)]=1'
mapfile -C 'rm victim #' -c 1 < /etc/hosts
complete -C 'rm victim' x; compgen -C 'rm victim' x
BASH_ENV=x bash -c 'rm victim'
PS4='$(rm victim)' bash -xc 'echo x'
ENV=x sh -c 'rm victim'
LD_PRELOAD=x rm victim
LANG=C rm victim
LC_ALL=C sh -c 'rm victim'
LANG=$(rm victim) echo x
LANG=`rm victim`
echo x # comment
rm victim # echo x
echo x \
; rm victim
echo x \
&& rm victim
/lib64/ld-linux-x86-64.so.2 /bin/rm victim
=rm victim
~/../../bin/rm victim
echo x; /bin/../bin/rm victim
echo x ; ; rm victim
echo a; echo b; echo c; rm victim
echo "a" "b"; "rm" "victim"
echo 'it'"'"'s'; rm victim
echo \; ; rm victim
echo \\; rm victim
echo "\""; rm victim
echo '\'; rm victim
echo "$"; rm victim
echo "$x"; rm victim
echo $x; rm victim
echo ${HOME}; rm victim
echo *; rm victim
echo [a-z]; rm victim
echo ~; rm victim
echo a\
b; rm victim
"""

ARGVS: list[list[str]] = [
    ["rm", "victim"],
    ["/bin/rm", "victim"],
    ["env", "rm", "victim"],
    ["env", "--", "rm", "victim"],
    ["env", "-i", "sh", "-c", "rm victim"],
    ["sh", "-c", "echo x\nrm victim"],
    ["sh", "-c", "echo x\r\nrm victim"],
    ["sh", "-c", "echo x;\trm\tvictim"],
    ["bash", "-c", "echo x\x0brm victim"],
    ["bash", "-c", "echo x\n\n\n rm victim"],
    ["sh", "-c", "\\\nrm victim"],
    ["sh", "-c", "r\\\nm victim"],
    ["sh", "-c", "echo x\\\n;rm victim"],
    ["sh", "-c", "echo 'a\nb'; rm victim"],
    ["sh", "-c", 'echo "a\n$(rm victim)"'],
    ["sh", "-c", "echo a &\nrm victim"],
    ["sh", "-c", "echo\u00a0x;rm victim"],
    ["bash", "-c", "echo x\u2028rm victim; rm victim"],
    ["sh", "+x", "-c", "rm victim"],
    ["sh", "-xc", "rm victim"],
    ["sh", "-c", ""],
    ["sh"],
    ["bash", "--init-file", "x", "-i"],
    ["xargs", "rm"],
    ["xargs", "-a", "names", "rm"],
    ["xargs", "--arg-file=names", "rm"],
    ["find", ".", "-delete"],
    ["find", ".", "-exec", "rm", "{}", "+"],
    ["find", ".", "-exec", "/bin/rm", "{}", ";", "-exec", "echo", "{}", ";"],
    ["timeout", "1", "env", "nice", "rm", "victim"],
    ["nohup", "sh", "-c", "rm victim"],
    ["busybox", "sh", "-c", "rm victim"],
    ["link-to-rm", "victim"],
    ["./link-to-rm", "victim"],
    ["./echo", "x"],
    ["./link-to-env", "rm", "victim"],
    ["./link-to-sh", "-c", "rm victim"],
    ["ECHO", "x"],
    ["echo ", "x"],
    ["echo;rm", "victim"],
    ["echo\nrm", "victim"],
    ["nice", "-\u0665", "echo", "x"],
    ["exec", "echo", "x"],
    ["builtin", "echo", "x"],
    ["command", "echo", "x"],
    ["nice", "exec", "echo", "x"],
    ["bash", "-c", "exec builtin echo x"],
    ["sh", "-c", "builtin echo x"],
    ["dash", "-c", "echo x |& echo y"],
    ["ksh", "-c", "echo x |& rm victim"],
    ["ksh", "-c", "builtin echo x"],
    ["env", "COLUMNS=a[$(rm victim)]", "mksh", "-c", "echo x"],
    ["env", "COLUMNS=a[$(rm victim)]", "ksh", "-c", "echo x"],
    ["env", "LINES=$(rm victim)", "echo", "x"],
    ["./\ud800", "victim"],
    *([f"./{REPO}/{name}", "echo", "x"] for name in FALSE_FRIENDS),
    *([f"{REPO}/../{REPO}/{name}", "-c", "echo x"] for name in FALSE_FRIENDS),
    *(["env", "nice", f"./{REPO}/{name}", "echo", "x"] for name in FALSE_FRIENDS),
    ["find", ".", "-execdir", "./echo", "{}", ";"],
    ["find", ".", "-exec", "echo", "+", "-exec", "rm", "victim", ";"],
    ["xargs", "-I", "X", "-L", "1", "echo", "X"],
    ["sh", "-c", f"cd {REPO} && env ./echo x"],
]


def attempts() -> list[list[str]]:
    """Every attempt as the argv a shell would be given; continued lines belong together."""
    joined = TEXTS.strip().replace("\\\n", "\\\0").replace("x\nrm victim'", "x\0rm victim'")
    texts = [line.replace("\0", "\n") for line in joined.splitlines() if line]
    alike = [["sh", "-c", text] for text in shell_bypasses.TEXTS]
    return [[shell, "-c", text] for text in texts for shell in ("sh", "bash")] + alike + ARGVS
