# Kills the programs of a worker when that worker is gone, for whatever reason. One for each process that runs programs.
#
# $1 is the prefix of the mark in the environment of all programs. End of file on standard input means that the worker
# is gone. Standard output is a file in which the worker has listed the running process groups, one a line; lines can
# be empty.

trap '' HUP INT QUIT TERM
mark=$1

contains() {
  case $1 in *" $2 "*) ;; *) return 1 ;; esac
}

read -r nothing

groups=' '
while read -r group; do
  [ -z "$group" ] || groups="$groups$group "
done <&1
exec >/dev/null

# Repeat until nothing is found twice in a row, because a program may have been about to start. Give up on processes
# that cannot be killed.
calm=0
tries=0
while [ "$calm" -lt 2 ] && [ "$tries" -lt 100 ]; do
  tries=$((tries + 1))
  victims=' '
  for file in $(grep -lsF -e "$mark" /proc/[0-9]*/environ); do
    file=${file#/proc/}
    victims="$victims${file%/environ} "
  done
  # including all members of the groups and all their descendants
  grown=yes
  while [ -n "$grown" ]; do
    grown=
    for file in /proc/[0-9]*/stat; do
      read -r stat <"$file" || continue
      pid=${stat%% *}
      set -- ${stat##*") "}
      # $1: state, $2: parent, $3: process group
      case $1 in Z | X) continue ;; esac
      if ! contains "$victims" "$pid" && { contains "$victims" "$2" || contains "$groups" "$3"; }; then
        victims="$victims$pid "
        grown=yes
      fi
    done
  done
  # on systems without /proc
  for group in $groups; do
    kill -KILL -- "-$group"
  done
  if [ "$victims" = ' ' ]; then
    calm=$((calm + 1))
  else
    calm=0
    kill -KILL $victims
  fi
  sleep 0.1
done
