# Ends the programs of a worker when that worker is gone, however it went. One for each process that runs programs.
#
# $1 is the beginning of the mark in the environment of all programs. Standard input tells which process groups run ("begun 4711",
# "ended 4711", and "ready" before one begins); its end is the end of the worker.

trap '' HUP INT QUIT TERM
mark=$1

contains() {
  case $1 in *" $2 "*) ;; *) return 1 ;; esac
}

groups=' '
while read -r what group; do
  if [ "$what" = begun ]; then
    groups="$groups$group "
  elif [ "$what" = ended ] && contains "$groups" "$group"; then
    groups="${groups%%" $group "*} ${groups#*" $group "}"
  fi
done

# Until twice in a row nothing is found: a program may have been about to start. What cannot be killed is left alone in the end.
calm=0
tries=0
while [ "$calm" -lt 2 ] && [ "$tries" -lt 100 ]; do
  tries=$((tries + 1))
  doomed=' '
  for file in $(grep -lsF -e "$mark" /proc/[0-9]*/environ); do
    file=${file#/proc/}
    doomed="$doomed${file%/environ} "
  done
  # with all of the groups, and all that descends from any of them
  grown=yes
  while [ -n "$grown" ]; do
    grown=
    for file in /proc/[0-9]*/stat; do
      read -r stat <"$file" || continue
      pid=${stat%% *}
      set -- ${stat##*") "}
      # $1: state, $2: parent, $3: process group
      case $1 in Z | X) continue ;; esac
      if ! contains "$doomed" "$pid" && { contains "$doomed" "$2" || contains "$groups" "$3"; }; then
        doomed="$doomed$pid "
        grown=yes
      fi
    done
  done
  # where there is no /proc
  for group in $groups; do
    kill -KILL -- "-$group"
  done
  if [ "$doomed" = ' ' ]; then
    calm=$((calm + 1))
  else
    calm=0
    kill -KILL $doomed
  fi
  sleep 0.1
done
